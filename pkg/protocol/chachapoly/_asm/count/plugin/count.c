// SPDX-License-Identifier: Apache-2.0

// A plugin for QEMU that prints how many instructions the guest ran, by version 1 of QEMU's interface for plugins
// (docs/devel/tcg-plugins.rst), which 4.2 to 8.2 accept. Debian does not package its header.

#include <inttypes.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef void (*on_translate)(uint64_t id, struct qemu_plugin_tb *block);
typedef void (*on_exit)(uint64_t id, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, on_translate);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *counter, uint64_t by);
void qemu_plugin_register_atexit_cb(uint64_t id, on_exit, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

int qemu_plugin_version = 1;

static uint64_t instructions;

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
	qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &instructions, qemu_plugin_tb_n_insns(block));
}

static void ended(uint64_t id, void *data)
{
	fprintf(stderr, "instructions: %" PRIu64 "\n", instructions);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}
