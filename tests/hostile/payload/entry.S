/* SPDX-License-Identifier: Apache-2.0 */
/* Entered as a 64-bit Linux kernel is: RSI is the zero page, paging is on for RAM alone, interrupts are off. */
	.text
	.globl _start
_start:
	movl $stack_top, %esp
	movq %rsi, %rdi
	call payload_main
1:	cli
	hlt
	jmp 1b

	.bss
	.balign 16
	.skip 0x4000
stack_top:

	.section .note.GNU-stack, "", @progbits
