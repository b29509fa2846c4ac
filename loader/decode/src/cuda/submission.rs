//! A batch on its way through a device: its files copied, decoded, and made the batch's tensors.
//!
//! The calling thread waits for the device in three cases: for a batch's files, if the decoder
//! reads them there; for memory of the batch before the last two; and for engines, which decode
//! within the call. One event, the batch's end, marks everything that a batch uses.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::fmt;
use std::sync::{Arc, OnceLock};

use forebay_error::{Error, Result};

use super::device::{Device, Staging};
use super::driver::{Done, Entered, Stream};
use super::flight::Place;
use super::memory::Memory;
use super::nvjpeg::{JpegTask, PLANES_MAX};
use super::runs::runs;
use super::tensor::DeviceTensor;
use super::view::{Address, CHANNELS, Move, Placing, Plane, Stored, Tables};
use crate::column::Tensor;
use crate::dtype::DType;
use crate::image::ImagePlan;

/// Alignment of files and rows in a block: the widest loads.
const ALIGN: usize = 256;

/// An image that the device decodes.
#[derive(Debug)]
pub(crate) struct Picture<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) stored: Stored,
    /// Tables of the results.
    pub(crate) tables: Tables,
    /// Row in the tensor.
    pub(crate) row: usize,
}

impl Picture<'_> {
    /// Returns the bytes of its components.
    fn planes_len(&self) -> usize {
        self.stored.planes().map(plane_len).sum()
    }
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
pub(crate) struct Submission<'a> {
    device: &'a Device,
    around: &'a [u8],
    used: Vec<Memory>,
    ready: Arc<OnceLock<Done>>,
    place: Place<'a>,
    // Dropped last: the rest is dropped on its device.
    _entered: Entered,
}

impl fmt::Debug for Submission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("device", &self.device).finish_non_exhaustive()
    }
}

/// The rows of a tensor of images.
#[derive(Clone, Copy)]
struct Rows<'p> {
    plan: &'p ImagePlan,
    out: Address,
    /// Bytes of each.
    len: usize,
}

impl<'a> Submission<'a> {
    pub(super) fn new(
        device: &'a Device,
        around: &'a [u8],
        place: Place<'a>,
        entered: Entered,
    ) -> Self {
        let (used, ready) = (Vec::new(), Arc::default());
        Self { device, around, used, ready, place, _entered: entered }
    }

    /// Makes `rows` rows of images: `pictures` by the device, from `files`; those in `staging` as
    /// the CPU made them (index and row); and zeros for `absent` ones.
    pub(crate) fn images(
        &mut self,
        plan: &ImagePlan,
        (pictures, files): (Vec<Picture<'a>>, &[Address]),
        (staging, staged): (Option<Staging>, &[(usize, usize)]),
        absent: &[usize],
        rows: usize,
    ) -> std::result::Result<DeviceTensor, Failure> {
        let row_shape = plan.row_shape().expect("checked with the field");
        let row = row_shape.iter().product::<usize>() * plan.dtype().size();
        let shape = std::iter::once(rows).chain(row_shape.iter().copied()).collect();
        let tensor = self.tensor(plan.dtype(), shape)?;
        let out = tensor.address();
        let pictures: Vec<_> = pictures.into_iter().zip(files.iter().copied()).collect();
        let (gray, colored): (Vec<_>, Vec<_>) =
            pictures.into_iter().partition(|(picture, _)| picture.stored.components == 1);
        for alike in [colored, gray] {
            for part in parts(&alike, PLANES_MAX) {
                self.decode(part, Rows { plan, out, len: row })?;
            }
        }
        if let Some(mut staging) = staging {
            staging.0.is_used();
            for (from, to) in staged {
                let from = &staging.0.bytes()[from * row..][..row];
                // SAFETY: the staging is kept until the batch's end, and the row has no other
                // writer.
                unsafe { self.device.work.upload(from, out + (to * row) as u64) }?;
            }
            self.used.push(staging.0);
        }
        for to in absent {
            // SAFETY: the row has no other writer.
            unsafe { self.device.work.zero(out + (to * row) as u64, row) }?;
        }
        Ok(tensor)
    }

    /// Decodes images with the same number of components, and makes their rows.
    fn decode(
        &mut self,
        part: &[(Picture<'a>, Address)],
        rows: Rows<'_>,
    ) -> std::result::Result<(), Failure> {
        let Some((first, _)) = part.first() else { return Ok(()) };
        let (device, plan) = (self.device, rows.plan);
        let (components, results) = (first.stored.components, first.tables.results());
        let mut turn = device.decoder().turn(&device.work)?;
        let len = part.iter().map(|(picture, _)| picture.planes_len()).sum();
        let planes = turn.planes(len, |len| device.memory(len))?;
        let (tasks, tables) = self.tasks(part, planes, rows)?;
        let copied = device.copies.done()?;
        if !device.decodes_from_host() {
            // The decoder reads the files when it is called.
            copied.wait()?;
        }
        device.work.after(&copied)?;
        // SAFETY: files on the device were just waited for, and are in blocks kept until the
        // batch's end; those in the process's memory are the batch's, which outlasts the work. The
        // turn waited for the components.
        unsafe { turn.decode(&tasks, components) }.map_err(Failure::Decoder)?;
        let elements = rows.len / plan.dtype().size() / CHANNELS / results;
        let table = (tables.values, plan.dtype().size() as u32);
        // SAFETY: the tables are there by then, and name blocks that are kept.
        unsafe {
            let (views, driver) = (part.len() * results, &device.driver);
            driver.make_pixels(&device.work, tables.at, views, table, elements as u64)
        }?;
        turn.finish()?;
        Ok(())
    }

    /// Returns the work of nvJPEG, with components from `planes` on, and the kernel's tables, whose
    /// copy is queued.
    fn tasks(
        &mut self,
        part: &[(Picture<'a>, Address)],
        planes: Address,
        rows: Rows<'_>,
    ) -> Result<(Vec<JpegTask>, Placed)> {
        let tables = || part.iter().map(|(picture, _)| &picture.tables);
        let len = Placing::len(tables()).next_multiple_of(ALIGN);
        let values = rows.plan.table();
        let mut written = self.device.pinned(len + values.len())?;
        let placed = self.device.memory(written.len())?;
        let at = placed.at();
        let (bytes, after) = written.bytes_mut().split_at_mut(len);
        after.copy_from_slice(values);
        let mut placing = Placing::new(at, tables());
        let mut free = planes;
        let mut tasks = Vec::with_capacity(part.len());
        for (picture, file) in part {
            let mut planes = [Plane::default(); CHANNELS];
            for (plane, size @ (height, width)) in planes.iter_mut().zip(picture.stored.planes()) {
                *plane = Plane { at: free, pitch: pitch(width), width, height, unused: 0 };
                free += plane_len(size) as u64;
            }
            tasks.push(JpegTask { at: *file, len: picture.file.len(), planes });
            let out = rows.out + (picture.row * rows.len) as u64;
            let each = rows.len / picture.tables.results();
            let planes = &planes[..picture.stored.components as usize];
            placing.put(bytes, &picture.tables, planes, (out, each));
        }
        written.is_used();
        // SAFETY: both blocks are kept until the batch's end.
        unsafe { self.device.copies.upload(written.bytes(), at) }?;
        self.used.extend([written, placed]);
        Ok((tasks, Placed { at, values: at + len as u64 }))
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
        for (from, to) in rows.iter().zip((tensor.address()..).step_by(row.max(1))) {
            match from {
                Some(from) => moves.push(Move { from: *from, to }),
                // SAFETY: the row has no other writer.
                None => unsafe { self.device.work.zero(to, row) }?,
            }
        }
        if row > 0 && !moves.is_empty() {
            let table: &[u8] = bytemuck::cast_slice(&moves);
            let placed = self.device.memory(table.len())?;
            let at = placed.at();
            self.used.push(placed);
            let Device { driver, copies, work, .. } = self.device;
            // SAFETY: the block is kept until the batch's end.
            unsafe { self.send(table, copies, at) }?;
            work.after(&copies.done()?)?;
            // SAFETY: the moves and their sources are on the device by then, in blocks kept until
            // the batch's end.
            unsafe { driver.gather(work, at, moves.len(), row as u64) }?;
        }
        Ok(tensor)
    }

    /// Copies a CPU tensor to the device.
    pub(crate) fn upload(&mut self, tensor: &Tensor) -> Result<DeviceTensor> {
        let placed = self.tensor(tensor.dtype, tensor.shape.clone())?;
        let bytes = tensor.buffer.as_bytes();
        if !bytes.is_empty() {
            // SAFETY: the tensor has no other user.
            unsafe { self.send(bytes, &self.device.work, placed.address()) }?;
        }
        Ok(placed)
    }

    /// Marks the batch's end.
    pub(crate) fn finish(mut self) -> Result<Done> {
        // A batch of files alone has work on the other stream only.
        self.device.work.after(&self.device.copies.done()?)?;
        let done = self.device.work.done()?;
        for memory in &mut self.used {
            memory.used_until(&done);
        }
        self.place.ends_at(done.clone());
        // Set once: this takes `self`.
        let _ = self.ready.set(done.clone());
        Ok(done)
    }

    /// Makes a tensor whose elements the device's queued work will write.
    fn tensor(&self, dtype: DType, shape: Vec<usize>) -> Result<DeviceTensor> {
        let len = shape.iter().product::<usize>() * dtype.size();
        let memory = self.device.memory(len)?;
        let device = (&self.device.driver, &self.device.returns);
        Ok(DeviceTensor::new((dtype, shape), memory, self.ready.clone(), device))
    }

    /// Queues copying `bytes` to the device through pinned memory.
    ///
    /// # Safety
    /// `to` has room and no other user until the batch's end.
    unsafe fn send(&mut self, bytes: &[u8], stream: &Stream, to: Address) -> Result<()> {
        let mut staging = self.device.pinned(bytes.len())?;
        staging.bytes_mut().copy_from_slice(bytes);
        staging.is_used();
        // SAFETY: the staging is kept until the batch's end; the rest is as the caller guarantees.
        unsafe { stream.upload(staging.bytes(), to) }?;
        self.used.push(staging);
        Ok(())
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
        // Decoders read ahead of a file's end.
        let block = self.device.memory(len + ALIGN)?;
        let mut at = vec![0; files.len()];
        let device = self.device;
        let registered = device.registered();
        for (run, start) in runs.iter().zip(starts) {
            let to = block.at() + start as u64;
            for (file, offset) in &run.files {
                at[*file] = to + *offset as u64;
            }
            if registered.as_ref().is_some_and(|registered| registered.has(run.bytes)) {
                // SAFETY: the slab is registered, its batch's slot is held until after the batch,
                // and the block is kept.
                unsafe { device.copies.upload(run.bytes, to) }?;
                continue;
            }
            // SAFETY: the block is kept.
            unsafe { self.send(run.bytes, &device.copies, to) }?;
        }
        drop(registered);
        self.used.push(block);
        Ok(at)
    }
}

/// The kernel's tables on the device.
struct Placed {
    at: Address,
    /// Results of the 8-bit values.
    values: Address,
}

/// Splits images into parts that are decoded at once, of at most `max` bytes of components.
fn parts<'p, 'a>(
    images: &'p [(Picture<'a>, Address)],
    max: usize,
) -> impl Iterator<Item = &'p [(Picture<'a>, Address)]> {
    let mut rest = images;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|(picture, _)| {
            bytes += picture.planes_len();
            bytes <= max
        });
        // One that is larger by itself is decoded by itself.
        let count = fits.count().max(1).min(rest.len());
        let (part, after) = rest.split_at(count);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// Returns the bytes from row to row of a component on the device.
fn pitch(width: u32) -> u32 {
    width.next_multiple_of(ALIGN as u32)
}

fn plane_len((height, width): (u32, u32)) -> usize {
    height as usize * pitch(width) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_are_decoded_in_parts() {
        let picture = |row, height| {
            let stored = Stored { size: (height, 100), components: 1, sampling: (1, 1) };
            (Picture { file: &[], stored, tables: Tables::default(), row }, 0)
        };
        // Rows of components take 256 bytes.
        let heights = [1, 2, 3, 9, 1, 4];
        let images: Vec<_> =
            heights.iter().enumerate().map(|(row, height)| picture(row, *height)).collect();
        let split = |max| -> Vec<Vec<usize>> {
            let rows = |part: &[(Picture<'_>, Address)]| {
                part.iter().map(|(picture, _)| picture.row).collect()
            };
            parts(&images, max).map(rows).collect()
        };
        assert_eq!(split(5 * 256), [vec![0, 1], vec![2], vec![3], vec![4, 5]]);
        assert_eq!(split(usize::MAX), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(parts(&[], 1).count(), 0);
    }
}
