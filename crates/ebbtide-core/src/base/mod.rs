//! What all rooms use: no state of the heap.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`] | the keys of `EBBTIDE_CONF` |
//! | [`domains`] | zones by CPUs and nodes |
//! | [`ranks`] | the one order of locks |
//! | [`releaser`] | who releases memory |
//! | [`message`] | the one line before an abort |
//! | [`size_class`] | requests by size |
//! | [`source`] | what a holder of free memory provides |
//! | [`stats`] | what is counted, and the page that tells it |

pub mod config;
pub mod domains;
pub mod message;
pub mod ranks;
pub mod releaser;
pub mod size_class;
pub mod source;
pub mod stats;
