//! A GPU that decodes: work queued for a batch, and the resulting tensors.
//!
//! The calling thread never waits for the device, except where a host block or nvJPEG's state
//! is still in use by the batch before the last. Files are copied on one stream and decoded on
//! another, so a batch's copies overlap the decoding of the batch before. One event, the batch's
//! end, marks everything that a batch uses.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::{DriverError, sys};
use forebay_error::{Error, Result};
use forebay_wire::slab::Slab;

use super::driver::{Done, Driver, Stream, failed};
use super::memory::{Memory, Pool, Side};
use super::nvjpeg::{Decoder, JpegTask, Nvjpeg};
use super::view::{Address, CHANNELS, Move, Plane, Stored, Tables};
use crate::column::Tensor;
use crate::dtype::DType;
use crate::image::{Cut, ImagePlan, Orientation};

/// Idle device memory kept for later batches: four of 256 photos with their components and files,
/// some 200 MB each, which a device with 40 GB or more hardly notices.
const DEVICE_IDLE_MAX: usize = 1 << 30;

/// Idle pinned memory kept: tables and CPU-decoded rows of four batches.
const HOST_IDLE_MAX: usize = 256 << 20;

/// Alignment of files and rows in a block: the widest loads.
const ALIGN: usize = 256;

/// Largest gap that is copied along instead of making two copies: a copy costs the host some two
/// microseconds, in which the bus moves this many bytes.
const GAP_MAX: usize = 64 << 10;

/// Largest piece registered at once: drivers of the 580 line fail above.
const REGISTER_MAX: usize = 64 << 30;

/// A GPU that decodes batches.
pub struct Device {
    driver: Arc<Driver>,
    copies: Stream,
    work: Stream,
    memory: Pool,
    pinned: Pool,
    /// Present if the GPU was opened for images.
    decoder: Option<Mutex<Decoder>>,
    registered: Mutex<Option<Registered>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.driver.ordinal()).finish_non_exhaustive()
    }
}

/// A slab that the device copies from directly.
struct Registered {
    driver: Arc<Driver>,
    slab: Arc<Slab>,
    /// Registered address ranges; none if the driver rejects such memory.
    pieces: Vec<Range<usize>>,
}

impl Device {
    /// Opens device `ordinal` of those visible to the process. `nvjpeg` lists paths to try first
    /// for that library; without it, no images are decoded. Belongs to this process: a forked child
    /// must open its own.
    ///
    /// # Errors
    /// `NotFound` without a driver or the device, `Unavailable` without nvJPEG, `Invalid` for one
    /// that is too old, `Full` without memory on the device.
    pub fn open(ordinal: usize, nvjpeg: Option<&[PathBuf]>) -> Result<Arc<Self>> {
        let driver = Driver::open(ordinal)?;
        let decoder = |places| Decoder::new(Nvjpeg::open(places)?);
        let decoder = nvjpeg.map(decoder).transpose()?;
        Ok(Arc::new(Self {
            copies: driver.stream()?,
            work: driver.stream()?,
            memory: Pool::new(&driver, Side::Device, DEVICE_IDLE_MAX),
            pinned: Pool::new(&driver, Side::Host, HOST_IDLE_MAX),
            decoder: decoder.map(Mutex::new),
            registered: Mutex::default(),
            driver,
        }))
    }

    /// Returns its number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Registers `slab` for direct copies, in place of the slab before. If the device cannot, bytes
    /// go through pinned memory.
    ///
    /// # Errors
    /// The driver's error, except for devices that cannot register such memory.
    pub fn copy_from(&self, slab: &Arc<Slab>) -> Result<()> {
        let mut registered = self.lock(&self.registered);
        if registered.as_ref().is_some_and(|now| Arc::ptr_eq(&now.slab, slab)) {
            return Ok(());
        }
        // The old slab first: there may be room for only one.
        *registered = None;
        *registered = Some(Registered::new(&self.driver, slab)?);
        Ok(())
    }

    /// True if it was opened for images.
    pub(crate) fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// Returns the decoder's name in statistics.
    pub(crate) fn decoder_name(&self) -> &'static str {
        self.decoder().name()
    }

    fn decoder(&self) -> MutexGuard<'_, Decoder> {
        self.lock(self.decoder.as_ref().expect("checked with its fields"))
    }

    /// Returns, for each of these files, true if nvJPEG accepts its header.
    pub(crate) fn takes<'f>(&self, files: impl Iterator<Item = &'f [u8]>) -> Result<Vec<bool>> {
        self.driver.bind()?;
        let mut decoder = self.decoder();
        Ok(files.map(|file| decoder.takes(file)).collect())
    }

    /// Takes pinned memory for rows made by the CPU.
    pub(crate) fn staging(&self, len: usize) -> Result<Staging> {
        self.pinned.take(len, &self.copies).map(Staging)
    }

    /// Starts a batch, whose fields all lie in `around` if that is known.
    pub(crate) fn begin<'a>(&'a self, around: &'a [u8]) -> Result<Submission<'a>> {
        self.driver.bind()?;
        Ok(Submission { device: self, around, used: Vec::new(), ready: Arc::default() })
    }

    fn lock<'a, T>(&self, of: &'a Mutex<T>) -> MutexGuard<'a, T> {
        // One thread decodes; state left by a panic is only dropped.
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn new(driver: &Arc<Driver>, slab: &Arc<Slab>) -> Result<Self> {
        let (all, len) = (slab.addresses(), slab.len());
        let mut registered =
            Self { driver: driver.clone(), slab: slab.clone(), pieces: Vec::new() };
        if !driver.registers_read_only() {
            tracing::warn!(
                bytes = len,
                "the GPU cannot copy from the daemon's memory directly: the CPU copies \
                         batches to pinned memory first"
            );
            return Ok(registered);
        }
        driver.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        for start in all.clone().step_by(REGISTER_MAX) {
            let piece = start..all.end.min(start + REGISTER_MAX);
            // SAFETY: the slab stays mapped while it is kept, which is until its pieces are
            // unregistered.
            let status =
                unsafe { sys::cuMemHostRegister_v2(start as *mut c_void, piece.len(), flags) };
            status
                .result()
                .map_err(|error| failed("register the daemon's memory", error).at("bytes", len))?;
            registered.pieces.push(piece);
        }
        Ok(registered)
    }

    /// True if the device copies these bytes directly; false if they lie in two pieces.
    fn has(&self, bytes: &[u8]) -> bool {
        let part = bytes.as_ptr_range();
        let holds = |piece: &Range<usize>| {
            piece.start <= part.start as usize && part.end as usize <= piece.end
        };
        self.pieces.iter().any(holds)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.pieces.is_empty() || !self.driver.is_ours() {
            return;
        }
        // Copies from it may still be queued. Their errors reach the batches that wait for them.
        let _ = self.driver.synchronize();
        for piece in &self.pieces {
            // SAFETY: it was registered, and nothing copies from it any more.
            let _ = unsafe { sys::cuMemHostUnregister(piece.start as *mut c_void) };
        }
    }
}

/// Pinned memory that the CPU writes before a batch is queued.
#[derive(Debug)]
pub(crate) struct Staging(Memory);

impl Staging {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// An image that the device decodes.
#[derive(Debug)]
pub(crate) struct Picture<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) stored: Stored,
    pub(crate) orientation: Orientation,
    pub(crate) cuts: Vec<Cut>,
    /// Row in the tensor.
    pub(crate) row: usize,
}

/// Reason a batch was not queued.
#[derive(Debug)]
pub(crate) enum Failure {
    /// nvJPEG failed; the CPU may succeed.
    Decoder(Error),
    /// The device cannot be used.
    Device(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

/// A batch being queued. Dropped before it is finished, it waits for everything it used.
#[derive(Debug)]
pub(crate) struct Submission<'a> {
    device: &'a Device,
    around: &'a [u8],
    used: Vec<Memory>,
    ready: Arc<OnceLock<Done>>,
}

impl<'a> Submission<'a> {
    /// Makes `rows` rows of images: `pictures` by the device, from its files; those in `staging` as
    /// the CPU made them (index and row); and zeros for `absent` ones.
    pub(crate) fn images(
        &mut self,
        plan: &ImagePlan,
        (pictures, files): (&[Picture<'a>], &[Address]),
        (staging, staged): (Staging, &[(usize, usize)]),
        absent: &[usize],
        rows: usize,
    ) -> std::result::Result<DeviceTensor, Failure> {
        let row_shape = plan.row_shape().expect("checked with the field");
        let row = row_shape.iter().product::<usize>() * plan.dtype().size();
        let shape = std::iter::once(rows).chain(row_shape.iter().copied()).collect();
        let tensor = self.tensor(plan.dtype(), shape)?;
        let out = tensor.memory.at();
        if !pictures.is_empty() {
            let (jobs, tables) = self.jobs(plan, pictures, files, (out, row))?;
            let table = tables.len().next_multiple_of(ALIGN);
            let mut written =
                self.device.pinned.take(table + plan.table().len(), &self.device.copies)?;
            let placed = self.device.memory.take(written.len(), &self.device.copies)?;
            let elements = row / plan.dtype().size() / CHANNELS / pictures[0].cuts.len();
            let tables = tables.placed_at(placed.at());
            written.bytes_mut()[..tables.bytes.len()].copy_from_slice(&tables.bytes);
            written.bytes_mut()[table..].copy_from_slice(plan.table());
            // SAFETY: both blocks are kept until the batch's end.
            unsafe { self.device.copies.upload(written.bytes(), placed.at()) }?;
            let at = placed.at();
            self.used.extend([written, placed]);
            self.device.work.after(&self.device.copies.done()?)?;
            let mut decoder = self.device.decoder();
            // SAFETY: files and components are in blocks kept until the batch's end, and the files
            // were queued before the tables, which were just waited for.
            unsafe { decoder.decode(&jobs, &self.device.work) }.map_err(Failure::Decoder)?;
            drop(decoder);
            let lut = (at + table as u64, plan.dtype().size() as u32);
            // SAFETY: as above; the views were uploaded before, and name blocks that are kept.
            unsafe {
                let device = self.device;
                device.driver.make_pixels(&device.work, at, tables.views, lut, elements as u64)
            }?;
        }
        for (from, to) in staged {
            let from = &staging.0.bytes()[from * row..][..row];
            // SAFETY: the staging is kept until the batch's end, and the row has no other writer.
            unsafe { self.device.work.upload(from, out + (to * row) as u64) }?;
        }
        for to in absent {
            // SAFETY: the row has no other writer.
            unsafe { self.device.work.zero(out + (to * row) as u64, row) }?;
        }
        self.used.push(staging.0);
        Ok(tensor)
    }

    /// Gathers arrays of one type and shape that lie on the device, with zeros for missing ones.
    pub(crate) fn arrays(
        &mut self,
        dtype: DType,
        shape: &[usize],
        rows: &[Option<Address>],
    ) -> Result<DeviceTensor> {
        let row = shape.iter().product::<usize>() * dtype.size();
        let shape = std::iter::once(rows.len()).chain(shape.iter().copied()).collect();
        let tensor = self.tensor(dtype, shape)?;
        let mut moves = Vec::with_capacity(rows.len());
        for (from, to) in rows.iter().zip((tensor.memory.at()..).step_by(row.max(1))) {
            match from {
                Some(from) => moves.push(Move { from: *from, to }),
                // SAFETY: the row has no other writer.
                None => unsafe { self.device.work.zero(to, row) }?,
            }
        }
        if row > 0 && !moves.is_empty() {
            let table = self.send(bytemuck::cast_slice(&moves))?;
            let (driver, work) = (&self.device.driver, &self.device.work);
            work.after(&self.device.copies.done()?)?;
            // SAFETY: the moves and their sources are on the device by then, in blocks kept until
            // the batch's end.
            unsafe { driver.gather(work, table, moves.len(), row as u64) }?;
        }
        Ok(tensor)
    }

    /// Copies a CPU tensor to the device.
    pub(crate) fn upload(&mut self, tensor: &Tensor) -> Result<DeviceTensor> {
        let placed = self.tensor(tensor.dtype, tensor.shape.clone())?;
        let bytes = tensor.buffer.as_bytes();
        if !bytes.is_empty() {
            let mut staging = self.device.pinned.take(bytes.len(), &self.device.work)?;
            staging.bytes_mut().copy_from_slice(bytes);
            // SAFETY: the staging is kept until the batch's end, and the tensor has no other user.
            unsafe { self.device.work.upload(staging.bytes(), placed.memory.at()) }?;
            self.used.push(staging);
        }
        Ok(placed)
    }

    /// Marks the batch's end.
    pub(crate) fn finish(mut self) -> Result<Done> {
        let done = self.device.work.done()?;
        for memory in &mut self.used {
            memory.used_until(&done);
        }
        // Set once: this takes `self`.
        let _ = self.ready.set(done.clone());
        Ok(done)
    }

    /// Makes a tensor whose elements the device's queued work will write.
    fn tensor(&self, dtype: DType, shape: Vec<usize>) -> Result<DeviceTensor> {
        let len = shape.iter().product::<usize>() * dtype.size();
        let memory = self.device.memory.take(len, &self.device.work)?;
        let driver = self.device.driver.clone();
        Ok(DeviceTensor { dtype, shape, memory, ready: self.ready.clone(), driver })
    }

    /// Queues copying `bytes` to the device with the files; returns their address there.
    fn send(&mut self, bytes: &[u8]) -> Result<Address> {
        let mut staging = self.device.pinned.take(bytes.len(), &self.device.copies)?;
        staging.bytes_mut().copy_from_slice(bytes);
        let placed = self.device.memory.take(bytes.len(), &self.device.copies)?;
        let at = placed.at();
        // SAFETY: both blocks are kept until the batch's end.
        unsafe { self.device.copies.upload(staging.bytes(), at) }?;
        self.used.extend([staging, placed]);
        Ok(at)
    }

    /// Queues the copies of `files`, all that the device needs of the batch's memory; returns their
    /// addresses there.
    pub(crate) fn bring(&mut self, files: &[&'a [u8]]) -> Result<Vec<Address>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let runs = runs(files, self.around);
        let mut starts = Vec::with_capacity(runs.len());
        let mut len = 0;
        for run in &runs {
            // The same offset from the widest load's boundary as in the slab, where files start at
            // whole blocks of a tar.
            let start: usize = len + run.bytes.as_ptr() as usize % ALIGN;
            starts.push(start);
            len = (start + run.bytes.len()).next_multiple_of(ALIGN);
        }
        let block = self.device.memory.take(len, &self.device.copies)?;
        let mut at = vec![0; files.len()];
        let registered = self.device.lock(&self.device.registered);
        for (run, start) in runs.iter().zip(starts) {
            let to = block.at() + start as u64;
            for (file, offset) in &run.files {
                at[*file] = to + *offset as u64;
            }
            if registered.as_ref().is_some_and(|registered| registered.has(run.bytes)) {
                // SAFETY: the slab is registered, its batch's slot is held until after the batch,
                // and the block is kept.
                unsafe { self.device.copies.upload(run.bytes, to) }?;
                continue;
            }
            let mut staging = self.device.pinned.take(run.bytes.len(), &self.device.copies)?;
            staging.bytes_mut().copy_from_slice(run.bytes);
            // SAFETY: both blocks are kept until the batch's end.
            unsafe { self.device.copies.upload(staging.bytes(), to) }?;
            self.used.push(staging);
        }
        drop(registered);
        self.used.push(block);
        Ok(at)
    }

    /// Returns the work of nvJPEG and the kernel for `pictures`, whose rows of `row` bytes start at
    /// `out`.
    fn jobs(
        &mut self,
        plan: &ImagePlan,
        pictures: &[Picture<'a>],
        files: &[Address],
        (out, row): (Address, usize),
    ) -> Result<(Vec<JpegTask>, Tables)> {
        let lens = pictures.iter().flat_map(|picture| picture.stored.planes()).map(plane_len);
        let components = self.device.memory.take(lens.sum(), &self.device.work)?;
        let mut free = components.at();
        let (mut jobs, mut tables) = (Vec::with_capacity(pictures.len()), Tables::default());
        for (picture, at) in pictures.iter().zip(files) {
            let mut planes = [Plane::default(); CHANNELS];
            for (plane, size @ (height, width)) in planes.iter_mut().zip(picture.stored.planes()) {
                *plane = Plane { at: free, pitch: pitch(width), width, height, unused: 0 };
                free += plane_len(size) as u64;
            }
            let components = picture.stored.components;
            jobs.push(JpegTask { at: *at, len: picture.file.len(), planes, components });
            let each = row / picture.cuts.len();
            for (index, cut) in picture.cuts.iter().enumerate() {
                let planes = &planes[..components as usize];
                let out = out + (picture.row * row + index * each) as u64;
                tables.push(&picture.stored, planes, picture.orientation, cut, plan.layout(), out);
            }
        }
        self.used.push(components);
        Ok((jobs, tables))
    }
}

/// Returns the bytes from row to row of a component on the device.
fn pitch(width: u32) -> u32 {
    width.next_multiple_of(ALIGN as u32)
}

fn plane_len((height, width): (u32, u32)) -> usize {
    height as usize * pitch(width) as usize
}

/// Bytes copied at once, and the offsets of files in them.
#[derive(Debug, PartialEq, Eq)]
struct Run<'a> {
    bytes: &'a [u8],
    files: Vec<(usize, usize)>,
}

/// Groups `files` into copies: neighbours in `around` together, others alone.
fn runs<'a>(files: &[&'a [u8]], around: &'a [u8]) -> Vec<Run<'a>> {
    let base = around.as_ptr() as usize;
    let place = |file: &[u8]| {
        let from = (file.as_ptr() as usize).checked_sub(base)?;
        (from + file.len() <= around.len()).then_some(from)
    };
    let mut order: Vec<(Option<usize>, usize)> =
        files.iter().enumerate().map(|(index, file)| (place(file), index)).collect();
    order.sort_unstable();
    let mut runs: Vec<Run<'a>> = Vec::new();
    // Range of the last run in `around`.
    let mut last: Option<(usize, usize)> = None;
    for (from, index) in order {
        let Some(from) = from else {
            runs.push(Run { bytes: files[index], files: vec![(index, 0)] });
            continue;
        };
        let to = from + files[index].len();
        match (&mut last, runs.last_mut()) {
            (Some((begin, end)), Some(run)) if from <= *end + GAP_MAX => {
                *end = to.max(*end);
                run.bytes = &around[*begin..*end];
                run.files.push((index, from - *begin));
            }
            _ => {
                last = Some((from, to));
                runs.push(Run { bytes: &around[from..to], files: vec![(index, 0)] });
            }
        }
    }
    runs
}

/// A dense array in C order on a device, written by work queued there.
#[derive(Debug)]
pub struct DeviceTensor {
    /// Element type.
    pub dtype: DType,
    /// Elements per dimension, the outermost first.
    pub shape: Vec<usize>,
    memory: Memory,
    ready: Arc<OnceLock<Done>>,
    driver: Arc<Driver>,
}

impl DeviceTensor {
    /// Returns its device's number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Returns its address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.at()
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// True if it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies it to `to`, queued on a framework's stream; its own memory is free after that.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `to` is device memory as long as the tensor, whose owner orders its use by that stream,
    /// which belongs to the device's primary context.
    pub unsafe fn copy_to(mut self, to: u64, stream: u64) -> Result<()> {
        self.driver.bind()?;
        // SAFETY: as the caller guarantees.
        let stream = unsafe { self.driver.stream_of(stream) };
        stream.after(self.ready()?)?;
        if !self.is_empty() {
            // SAFETY: as the caller guarantees.
            unsafe { stream.copy(self.memory.at(), to, self.memory.len()) }?;
        }
        let done = stream.done()?;
        self.memory.used_until(&done);
        Ok(())
    }

    /// Lends it to a user whose work is queued on `stream`; without one, to anybody at once.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `stream` belongs to the device's primary context, and lives until the result is dropped.
    pub unsafe fn lend(self, stream: Option<u64>) -> Result<Lent> {
        self.driver.bind()?;
        let Some(address) = stream else {
            self.ready()?.wait()?;
            return Ok(Lent { tensor: self, stream: None });
        };
        // SAFETY: as the caller guarantees.
        let stream = unsafe { self.driver.stream_of(address) };
        stream.after(self.ready()?)?;
        Ok(Lent { tensor: self, stream: Some(stream) })
    }

    fn ready(&self) -> Result<&Done> {
        self.ready
            .get()
            .ok_or_else(|| failed("use a tensor", DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)))
    }
}

/// A tensor lent to a framework. Once dropped, its memory is reused after the work then queued on
/// the stream it was lent for.
#[derive(Debug)]
pub struct Lent {
    tensor: DeviceTensor,
    stream: Option<Stream>,
}

impl Lent {
    /// Returns the tensor.
    #[must_use]
    pub fn tensor(&self) -> &DeviceTensor {
        &self.tensor
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.tensor.driver.is_ours() {
            return;
        }
        // Without a stream the queued work is unknown: the memory returns to the driver after all
        // work.
        if let Some(Ok(done)) = self.stream.as_ref().map(Stream::done) {
            self.tensor.memory.used_until(&done);
        }
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        // A tensor that nobody took is free once it is made.
        if let Some(ready) = self.ready.get()
            && self.memory.is_unmarked()
        {
            self.memory.used_until(ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    #[test]
    fn neighbouring_files_are_copied_in_one_run() {
        let around = vec![7_u8; 4 * GAP_MAX];
        let stranger = [9_u8; 10];
        let file = |from: usize, to: usize| &around[from..to];
        let far = 2 * GAP_MAX + 200;
        let files =
            [file(far, far + 10), file(100, 200), &stranger[..], file(0, 50), file(200, 201)];
        let runs = runs(&files, &around);
        let shown: Vec<_> =
            runs.iter().map(|run| (run.bytes.as_ptr(), run.bytes.len(), &run.files[..])).collect();
        assert_eq!(
            shown,
            [
                (stranger.as_ptr(), 10, &[(2, 0)][..]),
                (around.as_ptr(), 201, &[(3, 0), (1, 100), (4, 200)][..]),
                (around[far..].as_ptr(), 10, &[(0, 0)][..]),
            ]
        );
    }

    #[test]
    fn files_outside_the_slab_are_copied_one_by_one() {
        let (one, two) = ([1_u8; 3], [2_u8; 4]);
        let runs = runs(&[&one, &two], &[]);
        assert_eq!(runs.iter().map(|run| run.bytes).collect::<Vec<_>>(), [&one[..], &two[..]]);
    }

    #[test]
    fn opening_a_device_without_a_gpu_is_an_error() {
        let Err(error) = Device::open(0, Some(&[])) else { return };
        assert!(
            matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::Invalid
            ),
            "{error}"
        );
    }
}
