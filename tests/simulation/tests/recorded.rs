//! The simulation sees each defect whose mend is switched off, and is the same in every run.

use sluicegate_core::mends::Mend;
use sluicegate_simulation::{Scenario, recorded, trace, violations};

/// `sluicegate-simulation mends --record` finds the seeds again, where the simulation has changed.
#[test]
fn recorded_seeds_fail_without_their_mends_only() {
    for mend in Mend::ALL {
        let seed = recorded(mend).expect("a seed is recorded for each mend");
        let scenario = Scenario::new(seed);
        Mend::switch_off(Some(mend));
        assert!(!violations(&scenario).is_empty(), "{}: seed {seed} passes", mend.name());
        Mend::switch_off(None);
        assert_eq!(violations(&scenario), [], "{}: seed {seed}", mend.name());
    }
}

#[test]
fn runs_of_one_seed_are_the_same() {
    for seed in 0..100 {
        let scenario = Scenario::new(seed);
        assert!(trace(&scenario) == trace(&scenario), "seed {seed}");
    }
}
