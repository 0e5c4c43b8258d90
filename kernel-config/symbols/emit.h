/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The files beside this one are compiled inside the kernel tree, with the kernel's own flags, to
 * assembly only. Each EMIT leaves a marked line "->name symbol+offset size" there; build.sh
 * resolves the symbol by System.map. A field that this kernel does not have is a compile error.
 */
#define EMIT(name, lvalue) \
	asm volatile("\n->" name " %c0 %c1\n" : : "i"(&(lvalue)), "i"(sizeof(lvalue)))
