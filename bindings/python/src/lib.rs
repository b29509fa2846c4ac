//! The native half of the Python package `forebay`: `forebay._native`.
//!
//! ```text
//!   loader   a job's batches: open, start, next, without the GIL    loader.rs
//!   locator  places of samples, by a member index                 locator.rs
//!   batch    one batch, column by column, to Python objects         batch.rs
//!   binning  batches by tokens: lengths, and the bins they make      binning.rs
//!   tensor   decoded memory, handed to a framework                  tensor.rs
//!   dlpack   the C structures of that hand-over                     dlpack.rs
//!   device   a GPU that decodes                                     device.rs
//!   checkpoint  files of checkpoints                              checkpoint.rs
//!   buffer   bytes of Python objects, without the GIL               buffer.rs
//!   errors   each error as the package's own exception              errors.rs
//!   logs     warnings, for Python's logger                        logs.rs
//!   tools    the command line, URL lists, manifests                 tools.rs
//!   interruptible  work that Ctrl-C cuts short                      interruptible.rs
//! ```
//! Nothing that waits, decodes or copies payload holds the GIL. What users see is written
//! in Python beside this; the signatures here are private to it.

mod batch;
mod binning;
mod buffer;
mod checkpoint;
mod device;
mod dlpack;
mod errors;
mod interruptible;
mod loader;
mod locator;
mod logs;
mod selection;
mod tensor;
mod tools;

use pyo3::prelude::*;

/// The module's name is fixed by `module-name` in pyproject.toml.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DRAW_VERSION", forebay_decode::DRAW_VERSION)?;
    module.add("ORDER_VERSION", forebay_engine::plan::ORDER_VERSION)?;
    module.add("ORDER_OLDEST", forebay_engine::plan::ORDER_OLDEST)?;
    module.add("BAD_NAMED", forebay_wire::message::BAD_NAMED)?;
    module.add("SIDE_MAX", forebay_decode::SIDE_MAX)?;
    module.add("VIEWS_MAX", forebay_decode::VIEWS_MAX)?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<selection::Selection>()?;
    module.add_class::<locator::Locator>()?;
    module.add_class::<binning::Cut>()?;
    module.add_class::<binning::Bins>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batch::Texts>()?;
    module.add_class::<batch::View>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<checkpoint::CheckpointWriter>()?;
    module.add_class::<checkpoint::CheckpointReader>()?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_wait, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_latest, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_push, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_restore, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::checkpoint_remove, module)?)?;
    module.add_function(wrap_pyfunction!(tools::main, module)?)?;
    module.add_function(wrap_pyfunction!(tools::expand, module)?)?;
    module.add_function(wrap_pyfunction!(tools::expand_list, module)?)?;
    module.add_function(wrap_pyfunction!(tools::cores, module)?)?;
    module.add_function(wrap_pyfunction!(tools::shown, module)?)?;
    module.add_function(wrap_pyfunction!(tools::forks, module)?)?;
    module.add_function(wrap_pyfunction!(tools::count, module)?)?;
    module.add_function(wrap_pyfunction!(locator::listed, module)?)?;
    module.add_function(wrap_pyfunction!(tools::manifest_hash, module)?)?;
    module.add_function(wrap_pyfunction!(tools::repeats, module)?)?;
    module.add_function(wrap_pyfunction!(tools::check_field, module)?)?;
    module.add_function(wrap_pyfunction!(tools::no_stats, module)?)?;
    Ok(())
}
