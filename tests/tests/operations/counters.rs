//! Rules, counters and state, as operators ask for them and reset them.
