//! `vfork` with the child kept out of the sections.
//!
//! A `vfork` child runs on its parent's memory, thread pointer and all, but the kernel gives it no
//! registration: the `cpu_id` that it reads is its parent's last one and never changes again. A
//! section in the child would work on another CPU's slab, unprotected.
//!
//! So the child's first act is to write −1 there, which parks it. The parent is suspended until
//! the child is gone; the kernel writes its `cpu_id` anew when it comes back. Kernels that skip
//! that when the CPU has not changed leave −1; the parent then takes `cpu_id_start`, which is kept
//! in step, in a restartable section of its own. A parent that was itself unregistered (a `vfork`
//! child too) stays so.

/// Defines the C function `vfork` in the crate that calls this.
#[macro_export]
macro_rules! define_vfork {
    () => {
        /// `vfork(2)`, with the child kept away from the per-CPU caches.
        ///
        /// # Safety
        /// As vfork(2): the child may only `_exit` or `exec` (and, here, allocate and free).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn vfork() -> libc::pid_t {
            core::arch::naked_asm!(
                // The child's calls would overwrite the return address on the shared stack: keep
                // it, the offset, and the cpu_id of before in registers, which the call preserves.
                "pop rdi",
                "mov rdx, qword ptr [rip + {offset}]",
                "mov r8d, -1",
                "test rdx, rdx",
                "jz 2f",
                "mov r8d, dword ptr fs:[rdx + 4]",
                "2:",
                "mov eax, 58", // SYS_vfork
                "syscall",
                "test eax, eax",
                "jz 7f",
                "test r8d, r8d",
                "js 5f",
                "6:",
                "lea rcx, [rip + 9f]",
                "mov qword ptr fs:[rdx + 8], rcx",
                "3:",
                "cmp dword ptr fs:[rdx + 4], -1",
                "jne 5f",
                "mov ecx, dword ptr fs:[rdx]",
                "mov dword ptr fs:[rdx + 4], ecx", // commit
                "4:",
                "5:",
                "push rdi",
                "cmp eax, -4095",
                "jae 8f",
                "ret",
                "7:", // the child
                "test rdx, rdx",
                "jz 2f",
                "mov dword ptr fs:[rdx + 4], -1",
                "2:",
                "push rdi",
                "ret",
                "8:",
                "neg eax",
                "push rbx",
                "mov ebx, eax",
                "call {errno}",
                "mov dword ptr [rax], ebx",
                "pop rbx",
                "mov eax, -1",
                "ret",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "2:",
                "jmp 6b",
                ".pushsection .data.rel.ro.ebbtide_rseq, \"aw\", @progbits",
                ".balign 32",
                "9: .long 0, 0",
                ".quad 3b, 4b - 3b, 2b",
                ".popsection",
                offset = sym $crate::rseq::VFORK_GUARD_OFFSET,
                errno = sym libc::__errno_location,
            )
        }
    };
}
