//! Fixtures of tests across crates: a real origin, a real node, a real trainer.
//!
//! Rule: nothing here depends on the inside of a layer. Tests see what an operator or a trainer
//! sees: batches, errors, the status document, files on the disk.

mod bare;
mod catalog;
mod doom;
mod ended;
mod faulty;
mod hanging;
mod household;
mod http;
mod installed;
mod loops;
mod mount;
mod node;
mod origin;
mod others;
mod patience;
mod pixels;
mod process;
mod promtool;
mod rest;
mod scripted;
mod trainer;
mod way;

pub use bare::{Bare, BareConfig, BareTier};
pub use catalog::{Catalog, SIZES};
pub use doom::{Doom, Doomed, How, Spot};
pub use ended::{Ended, interruptible, played_error, reported_error, run};
pub use faulty::Faulty;
pub use hanging::{Hanging, hangs, readers_of};
pub use household::{Household, Trainer, alive, descriptors, kill};
pub use http::Answer;
pub use installed::{Installation, Installed};
pub use loops::LoopDisk;
pub use mount::Mount;
pub use node::{Daemon, FRAMES, admin, change_tier, daemon_status, followed, forget, status};
pub use origin::Origin;
pub use others::OthersNode;
pub use patience::{PATIENCE, eventually};
pub use pixels::png;
pub use process::{NodeProcess, Reader, Setup, play_once, read_until_eof, serve_until_eof};
pub use promtool::{checkout, promtool};
pub use rest::{
    FORMAT, Rest, flip, format_of, resting, to_format_before, to_format_to_come,
    to_format_without_tenants,
};
pub use scripted::{Peer, Scripted};
pub use trainer::{Epoch, Part, Received, config, epoch, job, job_with, loader, next, play, rest};
pub use way::{Refused, Way};
