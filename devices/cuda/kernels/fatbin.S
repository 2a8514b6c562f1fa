/* fatbin.S - embeds the kernels that nvcc compiled in the plugin. */
	.section .rodata
	.balign 16
	.globl cuda_fatbin
	.hidden cuda_fatbin
	.type cuda_fatbin, @object
cuda_fatbin:
	.incbin FATBIN
	.size cuda_fatbin, . - cuda_fatbin
	.section .note.GNU-stack, "", @progbits
