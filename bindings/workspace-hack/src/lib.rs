//! Unifies features of dependencies between the wheel and the tests.
//!
//! The crate has no code; its manifest is the content. Any package that is built alone with `-p`
//! and shares dependencies with the tests depends on it.
