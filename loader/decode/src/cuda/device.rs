//! A GPU that decodes: what is put in line for a batch, and the tensors that come of it.
//!
//! Its rule: the thread that asks never waits for the device, but where a block of host memory or nvJPEG's state is
//! still in use by the batch before the last. Files are copied on one stream and decoded on another, so that a batch's
//! copies run beside the decoding of the batch before it. Whatever a batch uses is marked with one event, its end.

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
use super::nvjpeg::{Decoder, Job, Nvjpeg};
use super::view::{Address, CHANNELS, Move, Plane, Stored, Tables};
use crate::column::Tensor;
use crate::dtype::DType;
use crate::image::{Cut, ImagePlan, Orientation};

/// Bytes of the device that are kept for the next batches: four of 256 photos with their components and files, some
/// 200 MB each, and a trainer with 40 GB or more hardly notices.
const DEVICE_IDLE_MAX: usize = 1 << 30;

/// Bytes of pinned memory that are kept: tables and what CPUs decoded of four batches.
const HOST_IDLE_MAX: usize = 256 << 20;

/// Where files and rows begin in a block: the widest loads.
const ALIGN: usize = 256;

/// Bytes between two things that are copied in one go rather than each by itself: a copy costs the host some two
/// microseconds, in which the bus moves this many.
const GAP_MAX: usize = 64 << 10;

/// The most that is registered in one piece: drivers of the 580 line fail above.
const REGISTER_MAX: usize = 64 << 30;

/// A GPU that decodes batches.
pub struct Device {
    driver: Arc<Driver>,
    copies: Stream,
    work: Stream,
    memory: Pool,
    pinned: Pool,
    /// Of a GPU that was opened for images.
    decoder: Option<Mutex<Decoder>>,
    registered: Mutex<Option<Registered>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.driver.ordinal()).finish_non_exhaustive()
    }
}

/// The slab that the device copies from by itself.
struct Registered {
    driver: Arc<Driver>,
    slab: Arc<Slab>,
    /// The addresses that the driver took, piece by piece; none where it takes no such memory.
    pieces: Vec<Range<usize>>,
}

impl Device {
    /// Opens device `ordinal` of those that the process may see; `nvjpeg` are places to look for that library first, or nothing
    /// where no images are to be decoded.
    /// Belongs to this process: a forked child must open one of its own.
    ///
    /// # Errors
    /// `NotFound` without a driver or the device, `Unavailable` without nvJPEG, `Invalid` for one that is too old, `Full` without memory on the device.
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

    /// Which device it is.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Has the device copy from `slab` by itself from now on, in place of what it was told before. Where it cannot,
    /// its bytes go through pinned memory.
    ///
    /// # Errors
    /// What the driver said, but for devices that cannot register such memory.
    pub fn copy_from(&self, slab: &Arc<Slab>) -> Result<()> {
        let mut registered = self.lock(&self.registered);
        if registered.as_ref().is_some_and(|now| Arc::ptr_eq(&now.slab, slab)) {
            return Ok(());
        }
        // The old one first: it may be the one that there is room for.
        *registered = None;
        *registered = Some(Registered::new(&self.driver, slab)?);
        Ok(())
    }

    /// Whether it was opened for images.
    pub(crate) fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// Who decodes, as it is counted.
    pub(crate) fn decoder_name(&self) -> &'static str {
        self.decoder().name()
    }

    fn decoder(&self) -> MutexGuard<'_, Decoder> {
        self.lock(self.decoder.as_ref().expect("checked when its fields were"))
    }

    /// Which of these files nvJPEG takes, by their headers.
    pub(crate) fn takes<'f>(&self, files: impl Iterator<Item = &'f [u8]>) -> Result<Vec<bool>> {
        self.driver.bind()?;
        let mut decoder = self.decoder();
        Ok(files.map(|file| decoder.takes(file)).collect())
    }

    /// Pinned memory for what the CPU makes for the device.
    pub(crate) fn staging(&self, len: usize) -> Result<Staging> {
        self.pinned.take(len, &self.copies).map(Staging)
    }

    /// Begins with a batch, whose fields all lie in `around` if that is known.
    pub(crate) fn begin<'a>(&'a self, around: &'a [u8]) -> Result<Submission<'a>> {
        self.driver.bind()?;
        Ok(Submission { device: self, around, used: Vec::new(), ready: Arc::default() })
    }

    fn lock<'a, T>(&self, of: &'a Mutex<T>) -> MutexGuard<'a, T> {
        // One thread decodes; what a panic of it leaves is not used again but to be dropped.
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
                "the GPU cannot copy from the daemon's memory by itself: the CPU copies batches to pinned memory first"
            );
            return Ok(registered);
        }
        driver.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        for start in all.clone().step_by(REGISTER_MAX) {
            let piece = start..all.end.min(start + REGISTER_MAX);
            // SAFETY: the slab is mapped for as long as it is kept, which is until its pieces are unregistered.
            let status =
                unsafe { sys::cuMemHostRegister_v2(start as *mut c_void, piece.len(), flags) };
            status
                .result()
                .map_err(|error| failed("register the daemon's memory", error).at("bytes", len))?;
            registered.pieces.push(piece);
        }
        Ok(registered)
    }

    /// Whether the device copies these bytes by itself; none that lie in two pieces.
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
        // Copies from it may be in line still. What is said of them, whoever waits for them hears.
        let _ = self.driver.synchronize();
        for piece in &self.pieces {
            // SAFETY: it was registered, and nothing copies from it any more.
            let _ = unsafe { sys::cuMemHostUnregister(piece.start as *mut c_void) };
        }
    }
}

/// Pinned memory that the CPU writes before a batch is put in line.
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
    /// Which row of the tensor it becomes.
    pub(crate) row: usize,
}

/// Why a batch was not put in line.
#[derive(Debug)]
pub(crate) enum Failure {
    /// nvJPEG failed at it; the CPU may know better.
    Decoder(Error),
    /// The device cannot be used.
    Device(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

/// A batch that is being put in line. Dropped before it is finished, everything it used is waited for.
#[derive(Debug)]
pub(crate) struct Submission<'a> {
    device: &'a Device,
    around: &'a [u8],
    used: Vec<Memory>,
    ready: Arc<OnceLock<Done>>,
}

impl<'a> Submission<'a> {
    /// `rows` rows of images: `pictures` by the device, of the files that it has, those in `staging` as the CPU made them (which of them, for
    /// which row), and zeros for those that are `absent`.
    pub(crate) fn images(
        &mut self,
        plan: &ImagePlan,
        (pictures, files): (&[Picture<'a>], &[Address]),
        (staging, staged): (Staging, &[(usize, usize)]),
        absent: &[usize],
        rows: usize,
    ) -> std::result::Result<DeviceTensor, Failure> {
        let row_shape = plan.row_shape().expect("checked when the field was");
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
            // SAFETY: files and components are in blocks that are kept until the batch's end, and the files were put in
            // line before the tables, which are waited for just above.
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
            // SAFETY: the staging is kept until the batch's end, and the row is nobody else's.
            unsafe { self.device.work.upload(from, out + (to * row) as u64) }?;
        }
        for to in absent {
            // SAFETY: the row is nobody else's.
            unsafe { self.device.work.zero(out + (to * row) as u64, row) }?;
        }
        self.used.push(staging.0);
        Ok(tensor)
    }

    /// Arrays of one type and shape, which lie on the device, side by side; zeros for those that are absent.
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
                // SAFETY: the row is nobody else's.
                None => unsafe { self.device.work.zero(to, row) }?,
            }
        }
        if row > 0 && !moves.is_empty() {
            let table = self.send(bytemuck::cast_slice(&moves))?;
            let (driver, work) = (&self.device.driver, &self.device.work);
            work.after(&self.device.copies.done()?)?;
            // SAFETY: the moves are there then, with what they move, in blocks that are kept until the batch's end.
            unsafe { driver.gather(work, table, moves.len(), row as u64) }?;
        }
        Ok(tensor)
    }

    /// A tensor of the CPU's, on the device.
    pub(crate) fn upload(&mut self, tensor: &Tensor) -> Result<DeviceTensor> {
        let placed = self.tensor(tensor.dtype, tensor.shape.clone())?;
        let bytes = tensor.buffer.as_bytes();
        if !bytes.is_empty() {
            let mut staging = self.device.pinned.take(bytes.len(), &self.device.work)?;
            staging.bytes_mut().copy_from_slice(bytes);
            // SAFETY: the staging is kept until the batch's end, and the tensor is nobody else's.
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

    /// A tensor whose elements are still to be written, by the device's work.
    fn tensor(&self, dtype: DType, shape: Vec<usize>) -> Result<DeviceTensor> {
        let len = shape.iter().product::<usize>() * dtype.size();
        let memory = self.device.memory.take(len, &self.device.work)?;
        let driver = self.device.driver.clone();
        Ok(DeviceTensor { dtype, shape, memory, ready: self.ready.clone(), driver })
    }

    /// Puts copying `bytes` to the device in line with the files; where they will lie.
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

    /// Puts the copies of `files`, all that the device needs of the batch's memory, in line; where each will lie.
    pub(crate) fn bring(&mut self, files: &[&'a [u8]]) -> Result<Vec<Address>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let runs = runs(files, self.around);
        let mut starts = Vec::with_capacity(runs.len());
        let mut len = 0;
        for run in &runs {
            // As far from the widest load's boundary as in the slab, where files begin at whole blocks of a tar.
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
                // SAFETY: the slab is registered, its batch's lease ends after the batch, and the block is kept.
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

    /// What nvJPEG and the kernel are to do with `pictures`, whose rows of `row` bytes begin at `out`.
    fn jobs(
        &mut self,
        plan: &ImagePlan,
        pictures: &[Picture<'a>],
        files: &[Address],
        (out, row): (Address, usize),
    ) -> Result<(Vec<Job>, Tables)> {
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
            jobs.push(Job { at: *at, len: picture.file.len(), planes, components });
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

/// Bytes from row to row of a component on the device.
fn pitch(width: u32) -> u32 {
    width.next_multiple_of(ALIGN as u32)
}

fn plane_len((height, width): (u32, u32)) -> usize {
    height as usize * pitch(width) as usize
}

/// Bytes that are copied in one go, and which of the files begin where in it.
#[derive(Debug, PartialEq, Eq)]
struct Run<'a> {
    bytes: &'a [u8],
    files: Vec<(usize, usize)>,
}

/// The copies that bring `files` over: neighbours in `around` together, what lies elsewhere by itself.
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
    // Where in `around` the last run lies.
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

/// A dense array in C order on a device, written by what is in line there.
#[derive(Debug)]
pub struct DeviceTensor {
    /// What an element is.
    pub dtype: DType,
    /// Elements per dimension, the outermost first.
    pub shape: Vec<usize>,
    memory: Memory,
    ready: Arc<OnceLock<Done>>,
    driver: Arc<Driver>,
}

impl DeviceTensor {
    /// Which device it is on.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Where it lies on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.at()
    }

    /// Its elements in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies it to `to`, in line on the stream of a framework's; its own memory is free after that.
    ///
    /// # Errors
    /// What the driver said.
    ///
    /// # Safety
    /// `to` is memory of the device, as long as the tensor, whose owner orders its use by that stream, which is one of
    /// the device's primary context.
    pub unsafe fn copy_to(mut self, to: u64, stream: u64) -> Result<()> {
        self.driver.bind()?;
        // SAFETY: as the caller says.
        let stream = unsafe { self.driver.stream_of(stream) };
        stream.after(self.ready()?)?;
        if !self.is_empty() {
            // SAFETY: as the caller says.
            unsafe { stream.copy(self.memory.at(), to, self.memory.len()) }?;
        }
        let done = stream.done()?;
        self.memory.used_until(&done);
        Ok(())
    }

    /// Lends it to whoever uses it in line on `stream`; without one, to anybody at once.
    ///
    /// # Errors
    /// What the driver said.
    ///
    /// # Safety
    /// `stream` is one of the device's primary context, and lives until what is returned is dropped.
    pub unsafe fn lend(self, stream: Option<u64>) -> Result<Lent> {
        self.driver.bind()?;
        let Some(address) = stream else {
            self.ready()?.wait()?;
            return Ok(Lent { tensor: self, stream: None });
        };
        // SAFETY: as the caller says.
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

/// A tensor in a framework's hands. When that lets go of it, its memory is used again after what is in line then on
/// the stream that it was lent for.
#[derive(Debug)]
pub struct Lent {
    tensor: DeviceTensor,
    stream: Option<Stream>,
}

impl Lent {
    /// What was lent.
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
        // Without a stream nobody knows what is in line: its memory goes to the driver, after everything.
        if let Some(Ok(done)) = self.stream.as_ref().map(Stream::done) {
            self.tensor.memory.used_until(&done);
        }
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        // One that nobody took is free when it was made.
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
    fn neighbours_are_copied_together_and_strangers_alone() {
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
    fn files_without_surroundings_go_each_by_itself() {
        let (one, two) = ([1_u8; 3], [2_u8; 4]);
        let runs = runs(&[&one, &two], &[]);
        assert_eq!(runs.iter().map(|run| run.bytes).collect::<Vec<_>>(), [&one[..], &two[..]]);
    }

    #[test]
    fn a_machine_without_a_gpu_opens_none() {
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
