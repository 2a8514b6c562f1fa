/* machines.S - embeds the machine files. */
.macro machine name, file
	.global tess_machine_\name
	.hidden tess_machine_\name
	.global tess_machine_\name\()_end
	.hidden tess_machine_\name\()_end
tess_machine_\name:
	.incbin "\file"
tess_machine_\name\()_end:
.endm

	.section .rodata
	machine a100, "data/machines/a100.json"
	machine a100_megatron, "data/machines/a100-megatron.json"
	machine h100, "data/machines/h100.json"
	machine h100_megatron, "data/machines/h100-megatron.json"
	machine h100_nanotron, "data/machines/h100-nanotron.json"
	machine h200, "data/machines/h200.json"
	.section .note.GNU-stack, "", %progbits
