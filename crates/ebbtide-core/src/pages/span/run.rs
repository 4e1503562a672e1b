//! Objects that come back to a span in runs.
//!
//! What is freed in the order in which it was allocated, or backwards, lies side by side: such objects are tested and put
//! back as one range of bits. Each is still tested for its place and its bit before any bit is set, and where one of
//! them is refused, all go in one by one up to that one. See
//! [decision 0057](../../../../docs/decisions/0057-neighbours-return-as-one-range.md).

use super::{Misuse, Span, words_of};
use crate::base::size_class::Class;
use ebbtide_zone::FRAME_BYTES;

/// Objects side by side that are worth going in together.
const MANY: usize = 8;

impl Span {
    /// Puts back the objects at the front of `objects` that lie in this span: how many, and why the next was refused.
    /// Neighbours at the front go in alone: ask again for the rest. Else a word of the map is fetched and stored once for
    /// all of its objects that stand together.
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

    /// Puts back the objects at the front of `objects` that lie side by side in this span, upwards or downwards: how
    /// many. `None`: they are few, or one of them is not to be put back; nothing was done then.
    fn put_neighbours(
        &mut self,
        class: &Class,
        span_address: usize,
        objects: &[usize],
    ) -> Option<usize> {
        let size = class.size as usize;
        // The first look is at one pair: objects freed at random go no further.
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

/// How many addresses at the front, `most` at most, are `step` behind the one before.
fn in_steps(addresses: &[usize], step: usize, most: usize) -> usize {
    let addresses = &addresses[..most.min(addresses.len())];
    let mut count = 1;
    // Eight at a time as long as all are: without a branch between them they are compared side by side.
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
