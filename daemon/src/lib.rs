//! The process: configuration, composition, sessions, admin, and the command line.
