//! The objects in the caches of CPUs: the stacks of each CPU's slab.

use ebbtide_interface::records::{BLOCK_FRAMES, CLASSES, FRAME_BYTES, class_bytes, slab};

use super::Heap;
use crate::memory::Readable;

impl<R: Readable> Heap<'_, R> {
    /// Reads the stacks of all CPUs. A slab that was never used cannot be read.
    pub fn read_caches(&mut self) {
        for cpu in 0..self.places.cpus {
            let slab = self.places.slabs + cpu * slab::BYTES;
            let Ok(headers) = self.memory.words(slab, CLASSES) else {
                continue;
            };
            for (class, &top) in headers.iter().enumerate().skip(1) {
                let start = slab + slab::HEADER_BYTES + class as u64 * slab::STACK_BYTES;
                if top <= start || top > start + slab::STACK_BYTES {
                    continue;
                }
                let entries = self.memory.words(start, (top - start) as usize / 8);
                let entries = entries.unwrap_or_default();
                for &object in entries.iter().rev().take_while(|&&object| object != 0) {
                    self.note_cached(object);
                }
            }
        }
    }

    fn note_cached(&mut self, object: u64) {
        let frame = object.wrapping_sub(self.places.base) / FRAME_BYTES;
        if frame >= self.places.blocks * BLOCK_FRAMES {
            return;
        }
        let id = self.memory.read(self.places.span_ids + frame * 4, 4);
        let Some(id) = id
            .ok()
            .and_then(|id| id.try_into().ok().map(u32::from_le_bytes))
        else {
            return;
        };
        let Ok(span) = self.span(id) else { return };
        let offset = object.wrapping_sub(self.places.base + span.first * FRAME_BYTES);
        if !(1..CLASSES).contains(&span.class) || offset >= span.frames * FRAME_BYTES {
            return;
        }
        let number = offset / class_bytes(span.class) as u64;
        if let Some(word) = self
            .cached
            .entry(id)
            .or_default()
            .get_mut(number as usize / 64)
        {
            *word |= 1 << (number % 64);
        }
    }
}
