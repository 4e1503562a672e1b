//! Objects that return to a span in runs.
//!
//! Objects that are freed in the order of their allocation, or in reverse, lie side by side. Such objects are tested and
//! put back as one range of bits. Each object is still tested for its place and its bit before any bit is set. If one of
//! them is refused, the objects before it are put back one by one. See
//! [decision 0057](../../../../docs/decisions/0057-neighbours-return-as-one-range.md).

use super::{Misuse, Span, words_of};
use crate::base::size_class::Class;
use ebbtide_zone::FRAME_BYTES;

/// Neighbouring objects that are put back in one step: at least this many.
const MANY: usize = 8;

impl Span {
    /// Puts back the objects at the front of `objects` that lie in this span. Returns their number, and why the
    /// next object was refused. If neighbours are at the front, only these are put back: call again for the rest.
    /// Otherwise a word of the map is loaded and stored once for all consecutive objects in it.
    pub fn put_run(
        &mut self,
        class: &Class,
        span_address: usize,
        objects: &[usize],
    ) -> (usize, Option<Misuse>) {
        if let Some(count) = self.put_neighbours(class, span_address, objects) {
            return (count, None);
        }
        let (mut at, mut bits) = (0, self.map[0]);
        let (mut count, mut refused) = (0, None);
        for &address in objects {
            let offset = address.wrapping_sub(span_address);
            let Some(number) = class.object_at(offset) else {
                let is_here = offset < self.frames as usize * FRAME_BYTES;
                refused = is_here.then_some(Misuse::Interior(address));
                break;
            };
            if number / 64 != at {
                self.map[at] = bits;
                at = number / 64;
                bits = self.map[at];
            }
            let bit = 1 << (number % 64);
            if bits & bit != 0 {
                refused = Some(Misuse::DoubleFree(address));
                break;
            }
            bits |= bit;
            count += 1;
        }
        self.map[at] = bits;
        self.free += count as u16;
        (count, refused)
    }

    /// Puts back the objects at the front of `objects` that lie side by side in this span, upwards or downwards.
    /// Returns their number. `None`: there are too few, or one of them must not be put back; nothing was changed
    /// then.
    fn put_neighbours(
        &mut self,
        class: &Class,
        span_address: usize,
        objects: &[usize],
    ) -> Option<usize> {
        let size = class.size as usize;
        // The first check compares one pair: objects freed in random order fail it.
        let far = size * (MANY - 1);
        let apart = objects.get(MANY - 1)?.wrapping_sub(objects[0]);
        if apart != far && apart != far.wrapping_neg() {
            return None;
        }
        let number = class.object_at(objects[0].wrapping_sub(span_address))?;
        let (first, count) = if apart == far {
            let behind = class.objects as usize - number;
            (number, in_steps(objects, size, behind))
        } else {
            let count = in_steps(objects, size.wrapping_neg(), number + 1);
            (number + 1 - count, count)
        };
        let words = || words_of(first, first + count - 1);
        if count < MANY || words().any(|(word, mask)| self.map[word] & mask != 0) {
            return None;
        }
        for (word, mask) in words() {
            self.map[word] |= mask;
        }
        self.free += count as u16;
        Some(count)
    }
}

/// Number of addresses at the front, at most `most`, that are each `step` behind the one before.
fn in_steps(addresses: &[usize], step: usize, most: usize) -> usize {
    let addresses = &addresses[..most.min(addresses.len())];
    let mut count = 1;
    // Compares eight at a time while all of them match: without a branch between them, the processor compares them
    // in parallel.
    while let Some(next) = addresses.get(count - 1..count + 8) {
        let other = (0..8).fold(0, |other, at| {
            other | next[at + 1].wrapping_sub(next[at]) ^ step
        });
        if other != 0 {
            break;
        }
        count += 8;
    }
    let rest = addresses[count - 1..].windows(2);
    count
        + rest
            .take_while(|pair| pair[1].wrapping_sub(pair[0]) == step)
            .count()
}
