//! Member lists from a real file, real names, and real Redis and Valkey servers.

mod dns;
mod file;
mod nodes;
mod redis;
