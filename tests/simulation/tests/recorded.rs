//! The simulation detects each known defect, and is the same in every run.

use sluicegate_simulation::{Mutant, Scenario, recorded_seed, run_and_trace, run_and_verify};

/// `sluicegate-simulation mutants --record` finds the seeds again after a change of the simulation.
#[test]
fn recorded_seeds_detect_their_mutants_and_pass_without() {
    for mutant in Mutant::all() {
        let seed = recorded_seed(mutant).expect("a seed is recorded for each mutant");
        let scenario = Scenario::new(seed);
        Mutant::plant(Some(mutant));
        assert!(!run_and_verify(&scenario).is_empty(), "{}: seed {seed} passes", mutant.name());
        Mutant::plant(None);
        assert_eq!(run_and_verify(&scenario), [], "{}: seed {seed}", mutant.name());
    }
}

#[test]
fn runs_of_one_seed_are_the_same() {
    for seed in 0..100 {
        let scenario = Scenario::new(seed);
        assert!(run_and_trace(&scenario) == run_and_trace(&scenario), "seed {seed}");
    }
}
