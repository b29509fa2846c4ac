//! Fixtures of tests across crates: a real origin, a real node, a real trainer.
//!
//! Nothing here depends on the inside of a layer. Tests see what an operator or a trainer
//! sees: batches, errors, the status document, files on the disk.

mod alone;
mod bare_store;
mod cache_contents;
mod catalog;
mod cluster;
mod ended;
mod faulty_device;
mod hanging_file;
mod http;
mod installed;
mod kill_point;
mod loops;
mod lying_node;
mod member_index;
mod mount;
mod node;
mod origin;
mod patience;
mod pixels;
mod process;
mod promtool;
mod saving_node;
mod scripted_daemon;
mod shared_node;
mod test_source;
mod trainer;
mod user_home;

pub use alone::alone;
pub use bare_store::{BareStore, BareStoreConfig, BareStoreTier};
pub use cache_contents::{
    CacheContents, FORMAT, cached_file, flip, format_of, to_format_without_tenants,
    to_future_format, to_previous_format,
};
pub use catalog::{Catalog, SIZES};
pub use cluster::{ClusterFiles, Flaw};
pub use ended::{Ended, interruptible, played_error, reported_error, run};
pub use faulty_device::FaultyDevice;
pub use hanging_file::{HangingFile, hangs, readers_of};
pub use http::Answer;
pub use installed::{Installation, Installed};
pub use kill_point::{KillPoint, KillStage, KillTiming, KillingFiles};
pub use loops::LoopDisk;
pub use lying_node::{Lie, LyingNode};
pub use member_index::{documents, write_index};
pub use mount::Mount;
pub use node::{Daemon, FRAMES, admin, change_tier, daemon_status, followed, forget, status};
pub use origin::Origin;
pub use patience::{PATIENCE, eventually};
pub use pixels::png;
pub use process::{NodeProcess, Reader, Setup, play_once, read_until_eof, serve_until_eof};
pub use promtool::{checkout, promtool};
pub use saving_node::{SavingNode, metadata, patterned, saves_anywhere, to_store, walk};
pub use scripted_daemon::{ScriptedDaemon, TrainerConnection};
pub use shared_node::SharedNode;
pub use test_source::{Denied, TestSource};
pub use trainer::{
    Epoch, Received, TrainerJob, config, epoch, job, job_with, loader, next, play, rest,
};
pub use user_home::{Trainer, UserHome, alive, descriptors, kill};
