//! What the list of threats says: who can call, and what hostile input can do.
