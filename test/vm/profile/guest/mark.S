/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A program that does nothing but execute its first address, which is MARK for plugin.c. */
	.section .mark, "ax"
	.globl _start
_start:
	mov $60, %eax /* exit */
	xor %edi, %edi
	syscall
