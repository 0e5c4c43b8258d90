# SPDX-License-Identifier: Apache-2.0
# thawbox. `make help` lists the targets. V=1 shows commands, BUILD=dir builds elsewhere,
# VARIANT=release|asan|tsan|clang|fuzz|cov chooses how objects are built (check uses them all).

VERSION = 0.1.0
PREFIX ?= /usr/local
BUILD ?= build
OUT ?= out
VARIANT ?= release

# Everything that is needed from Debian 12, in one place: to build and run, then to test.
PACKAGES_RUN = gcc make libc6-dev liburing-dev libfdt-dev libjansson-dev libedit-dev libxxhash-dev libseccomp-dev \
	libmicrohttpd-dev nettle-dev zlib1g-dev \
	linux-source-6.12 flex bison bc libelf-dev libssl-dev xz-utils zstd lz4 bzip2 gzip gdb cpio \
	mmdebstrap erofs-utils e2fsprogs python3-dev python3-matplotlib python3-numpy
PACKAGES_CHECK = python3-venv clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev llvm-14 libcriterion-dev \
	python3-pytest python3-ipython python3-pandas python3-scipy python3-pil python3-requests strace openssl

PYTHON = /usr/bin/python3
CLANG = clang-14
CC = gcc
ifneq ($(filter clang fuzz cov,$(VARIANT)),)
CC = $(CLANG)
endif

B = $(BUILD)/$(VARIANT)
Q = $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $(1) $(2))

# ---- flags ---------------------------------------------------------------------------------------

WARN = -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef \
	-Wcast-qual -Wwrite-strings -Wimplicit-fallthrough -Werror
# KVM's own structures end in arrays of no length, and stand at the head of larger ones.
WARN += $(if $(filter gcc,$(CC)),,-Wno-gnu-variable-sized-type-not-at-end)
HARDEN = -O2 -fstack-protector-strong -fstack-clash-protection -fcf-protection -D_FORTIFY_SOURCE=2
SANITIZE = -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
MODE_release = $(HARDEN)
MODE_clang = $(HARDEN)
MODE_asan = $(SANITIZE)
MODE_tsan = -O1 -fno-omit-frame-pointer -fsanitize=thread -Wno-tsan
MODE_fuzz = $(SANITIZE) -fsanitize=fuzzer-no-link
MODE_cov = -O1 -fsanitize=fuzzer-no-link -fprofile-instr-generate -fcoverage-mapping

CFLAGS = -std=c11 -D_GNU_SOURCE -g -fPIE -I. $(WARN) $(MODE_$(VARIANT)) -MMD -MP
CFLAGS += -DTHAWBOX_VERSION='"$(VERSION)"' -DTHAWBOX_PREFIX='"$(PREFIX)"'
LDFLAGS = -pie -pthread -Wl,-z,relro,-z,now,-z,noexecstack $(filter -fsanitize=% -fprofile-instr%,$(CFLAGS))

# All but libc is linked in: each shared library costs a start 0.1 to 0.2 ms, and one sandbox is two starts.
# (liburing 2.3 must be: its shared library lacks calls that the archive has.)
LIBS_vmm = -l:liburing.a -l:libfdt.a -l:libjansson.a
LIBS_api = -l:libjansson.a -l:libnettle.a -l:libedit.a -l:libtinfo.a -l:libbsd.a -l:libmd.a -l:libxxhash.a

# The daemon is started once: libmicrohttpd brings GnuTLS, which is a shared library alone.
LIBS_daemon = $(LIBS_api) -l:liburing.a -l:libz.a -lmicrohttpd

# ---- what is built -------------------------------------------------------------------------------

sources = $(wildcard $(1)/*.c)
objects = $(patsubst %.c,$(B)/obj/%.o,$(1))
library = $(call objects,$(filter-out $(1)/main.c $(1)/init.c $(GENERATOR),$(call sources,$(1))))
# Run by make alone: compiles the monitor's system call filters.
GENERATOR = vmm/seccomp_gen.c vmm/seccomp_rules.c

CORE = $(call library,core)
DEVICES = $(call library,devices)
VMM = $(call library,vmm) $(B)/obj/vmm/seccomp_code.o
API = $(call library,api)
DAEMON = $(call library,api/daemon)
INIT = $(call library,guest/init)

PROGRAMS = $(if $(wildcard vmm/main.c),$(B)/thawbox-vmm) $(if $(wildcard api/main.c),$(B)/thawbox) \
	$(if $(wildcard api/daemon/main.c),$(B)/thawboxd) \
	$(if $(wildcard bench/thaw.c),$(B)/thaw) $(if $(wildcard guest/init/*.c),$(B)/init)
UNIT = $(patsubst tests/unit/%.c,$(B)/unit/%,$(wildcard tests/unit/*/test_*.c tests/unit/api/daemon/test_*.c))
FUZZ = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
C_DIRS = core devices vmm api api/daemon guest/init bench
C_FILES = $(foreach d,$(C_DIRS),$(wildcard $(d)/*.[ch]))
FORMATTED = $(C_FILES) $(wildcard guest/python/*.[ch] tests/unit/*/*.[ch] tests/unit/api/daemon/*.[ch] \
	tests/fuzz/*.[ch] tests/faults/*.c tests/tools/*.[ch] tests/hostile/payload/*.[ch])

.PHONY: help all build programs packages demo check check-fast kernel rootfs template bench fuzz \
	fuzz-programs fuzz-replay hostile unit unit-asan e2e isolation faults e2b e2b-sdks sdk sdk-lint sdk-packages test-guest test-bench layers headers \
	mirror format format-check lint analyze size tsan check-hwkvm \
	install uninstall clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: build

help:
	@sed -n 's/^## //p' Makefile

## build         thawbox, thawbox-vmm, the guest's init, bench/thaw
build: programs
	$(if $(wildcard bench/thaw.c),$(Q)ln -sf $(abspath $(B)/thaw) bench/thaw)

programs: $(PROGRAMS) $(CORE) $(DEVICES) $(VMM) $(API) $(DAEMON) $(INIT)

$(B)/thawbox-vmm: $(call objects,vmm/main.c) $(VMM) $(DEVICES) $(CORE)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_vmm)

$(B)/seccomp_gen: $(call objects,$(GENERATOR))
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -l:libseccomp.a
$(B)/gen/vmm/seccomp_code.c: $(B)/seccomp_gen
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)ASAN_OPTIONS=detect_leaks=0 $< >$@
$(B)/obj/vmm/seccomp_code.o: $(B)/gen/vmm/seccomp_code.c
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

$(B)/libcore.a: $(CORE)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/thawbox: $(call objects,api/main.c) $(API) $(B)/libcore.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_api)

$(B)/thaw: $(call objects,$(wildcard bench/*.c)) $(API) $(B)/libcore.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_api)

$(B)/thawboxd: $(call objects,api/daemon/main.c) $(DAEMON) $(API) $(B)/libcore.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_daemon)

# Static: it is the only program of the guest's root image that must not depend on anything in there.
$(B)/init: $(call objects,$(wildcard guest/init/*.c))
	$(call say,LINK,$@)
	$(Q)$(CC) $(if $(filter asan tsan,$(VARIANT)),$(LDFLAGS),-static -no-pie) -o $@ $^ -l:libjansson.a

# A change of flags rebuilds what was made with others.
FLAGS = $(subst ','\'',$(CC) $(CFLAGS) $(LDFLAGS) $(LIBS_vmm) $(LIBS_daemon))
$(B)/flags: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' >$@

$(B)/obj/%.o: %.c $(B)/flags
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- unit tests: one program a test file, linked with its folder's layer and those below ----------

$(B)/obj/tests/%.o: private CFLAGS += -Wno-conversion -Wno-sign-conversion
LAYERS_core = $(CORE)
LAYERS_devices = $(DEVICES) $(CORE)
LAYERS_vmm = $(VMM) $(DEVICES) $(CORE)
LAYERS_api = $(API) $(B)/libcore.a
LAYERS_api/daemon = $(DAEMON) $(API) $(B)/libcore.a
LAYERS_guest = $(INIT)
LIBS_core = -l:liburing.a
LIBS_devices = -l:liburing.a
LIBS_guest = -l:libjansson.a
LIBS_api/daemon = $(LIBS_daemon)

define unit_rules
$(B)/unit/$(1)/test_%: $(B)/obj/tests/unit/$(1)/test_%.o $(LAYERS_$(1))
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LIBS_$(1)) -lcriterion
endef
$(foreach d,core devices vmm api api/daemon guest,$(eval $(call unit_rules,$(d))))

WANTED = $(if $(T),$(filter %/test_$(T),$(UNIT)),$(UNIT))
unit-programs: $(WANTED)

## unit          unit tests (VARIANT=asan: under AddressSanitizer and UBSan); T=name runs one
unit: unit-programs
	$(Q)tests/tools/unit.sh $(B) $(WANTED)

unit-asan:
	$(Q)$(MAKE) --no-print-directory VARIANT=asan unit

# ---- guest ----------------------------------------------------------------------------------------

## kernel        the guest kernel, into out/kernel (cached)
kernel:
	$(Q)kernel-config/build.sh $(OUT)

## rootfs        the guest's root image, into out/rootfs (cached)
rootfs:
	$(Q)guest/rootfs/build.sh $(OUT)

## template      bakes the code-interpreter template (cached)
template: build kernel rootfs
	$(Q)$(B)/thawbox template build code-interpreter

# ---- users' targets -------------------------------------------------------------------------------

## packages      installs what is missing of the Debian packages
packages:
	$(Q)tests/tools/packages.sh $(PACKAGES_RUN) $(if $(filter demo,$(MAKECMDGOALS)),,$(PACKAGES_CHECK))

## demo          everything, then a pandas analysis of a CSV file in a thawed sandbox
demo: packages
	$(Q)$(MAKE) --no-print-directory build
	$(Q)$(MAKE) --no-print-directory template
	$(Q)examples/sales/demo.sh $(B)/thawbox $(BUILD)/demo

## bench         the suite in short (RUNS=100), refreshes the figures in docs/; PEERS='--firecracker PATH' beside peers
RUNS ?= 100
bench: template
	$(Q)$(PYTHON) bench/bench.py $(B) $(BUILD)/bench $(RUNS) $(PEERS)

# ---- checks ---------------------------------------------------------------------------------------

## layers        fails when a folder includes one above it
layers:
	$(Q)tests/tools/layers.sh

## headers       each header compiles alone
headers:
	$(Q)for h in $(filter %.h,$(C_FILES)); do \
		echo "#include \"$$h\"" | $(CC) $(filter-out -MMD -MP,$(CFLAGS)) -fsyntax-only -x c - || \
		{ echo "headers: $$h does not compile alone"; exit 1; }; done
	@echo "headers: $(words $(filter %.h,$(C_FILES))) compile alone"

## mirror        each source file has a test of its name
mirror:
	$(Q)tests/tools/mirror.sh

## format        clang-format over all C files; format-check only looks
format:
	$(Q)clang-format-14 -i $(FORMATTED)
format-check:
	$(Q)clang-format-14 --dry-run -Werror $(FORMATTED)
	@echo "format: $(words $(FORMATTED)) files"

## lint          clang-tidy over all C files, warnings are errors (analyze: gcc -fanalyzer)
lint: $(patsubst %.c,$(BUILD)/lint/%.ok,$(filter %.c,$(C_FILES)))
	@echo "lint: $(words $^) files"
$(BUILD)/lint/%.ok: %.c .clang-tidy $(wildcard */*.h api/daemon/*.h guest/init/*.h)
	$(call say,TIDY,$<)
	$(Q)mkdir -p $(@D)
	$(Q)clang-tidy-14 --quiet --warnings-as-errors='*' $< -- \
		$(filter-out -MMD -MP -Werror -fstack-clash-protection,$(CFLAGS)) \
		$(if $(filter core/err.c,$<),,-include tests/tools/lint.h) 2>/dev/null
	$(Q)touch $@
analyze:
	$(Q)for f in $(filter %.c,$(C_FILES)); do \
		gcc $(filter-out -MMD -MP,$(CFLAGS)) -fanalyzer -c -o /dev/null $$f || exit 1; done

## fuzz          libFuzzer for TIME seconds a target (30), two at a time; F=name runs one, COVERAGE=1 counts lines
TIME ?= 30
WANTED_FUZZ = $(or $(F),$(FUZZ))
fuzz:
	$(Q)$(MAKE) --no-print-directory VARIANT=fuzz fuzz-programs
	$(if $(COVERAGE),$(Q)$(MAKE) --no-print-directory VARIANT=cov fuzz-programs)
	$(Q)$(PYTHON) tests/tools/fuzz.py $(BUILD)/fuzz $(TIME) $(WANTED_FUZZ) $(if $(JSON),--json) \
		$(if $(COVERAGE),--coverage $(BUILD)/cov)
fuzz-programs: $(WANTED_FUZZ:%=$(B)/fuzz_%)
$(B)/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/liball.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LIBS_vmm) $(LIBS_daemon)
$(B)/liball.a: $(VMM) $(DEVICES) $(API) $(DAEMON) $(CORE)
	$(Q)rm -f $@ && ar rcs $@ $^

## fuzz-replay   all inputs in the tree, without libFuzzer (VARIANT=asan: under the other compiler's sanitizers)
fuzz-replay: $(WANTED_FUZZ:%=$(B)/replay_%)
	$(Q)for t in $(WANTED_FUZZ); do \
		$(abspath $(B))/replay_$$t $(abspath tests/fuzz)/corpus/$$t $(abspath tests/fuzz)/regress/$$t || \
		{ echo "fuzz-replay: $$t FAILED"; exit 1; }; done
	@echo "fuzz-replay: $(words $(WANTED_FUZZ)) targets, no finding ($(VARIANT))"
$(B)/replay_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(B)/liball.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_vmm) $(LIBS_daemon)

## size          fails when the monitor's text and data exceed 400 KiB
size: $(B)/thawbox-vmm
	$(Q)size $< | awk 'NR == 2 { n = $$1 + $$2; print "size: thawbox-vmm text+data", n, "bytes"; \
		exit n >= 400 * 1024 }'

## e2e           end-to-end tests through the programs (needs /dev/kvm and the template); K=expression, N=1000 clones that differ
E2E ?= tests/e2e
e2e: build
	$(Q)THAWBOX_BIN=$(abspath $(B)) $(if $(N),THAWBOX_TEST_RUNS=$(N)) $(PYTHON) -m pytest -q $(if $(N),-rsxP,-rsx) -p no:cacheprovider $(E2E) $(if $(K),-k '$(K)')
## faults        faults injected below libc, full disks, limits, signals: every one is told, nothing is lost
faults: build $(B)/shim.so
	$(Q)THAWBOX_BIN=$(abspath $(B)) FAULT_SHIM=$(abspath $(B))/shim.so $(PYTHON) -m pytest -q -rsx -p no:cacheprovider \
		tests/faults $(if $(K),-k '$(K)')
$(B)/shim.so: tests/faults/shim.c $(B)/flags
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -g -O1 -fPIC -shared -Wall -Wextra -Werror -o $@ $< -ldl

## isolation     each layer of the monitor's jail, as root and as a user (needs /dev/kvm, no template); K=expression, LIST=1 shows what was tried
isolation: build
	$(Q)THAWBOX_BIN=$(abspath $(B)) $(PYTHON) -m pytest -q $(if $(LIST),-rsxP,-rsx) -p no:cacheprovider tests/isolation $(if $(K),-k '$(K)')

test-guest:
	$(Q)$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/guest $(if $(K),-k '$(K)')

# Pinned SDKs of E2B, from PyPI and npm, kept beside the guest's images under a hash of what is pinned.
E2B_PY = $(OUT)/e2b/python-$(shell sha256sum tests/e2b/requirements.txt | cut -c1-12)
E2B_JS = $(OUT)/e2b/node-$(shell cat tests/e2b/js/package*.json | sha256sum | cut -c1-12)
$(E2B_PY)/ready: tests/e2b/requirements.txt
	$(call say,PIP,$(E2B_PY))
	$(Q)$(PYTHON) -m venv $(E2B_PY) && $(E2B_PY)/bin/python -m pip install -q --disable-pip-version-check -r $< && touch $@
$(E2B_JS)/ready: tests/e2b/js/package.json tests/e2b/js/package-lock.json
	$(call say,NPM,$(E2B_JS))
	$(Q)mkdir -p $(E2B_JS) && cp tests/e2b/js/package*.json $(E2B_JS) && \
		cd $(E2B_JS) && npm ci --loglevel=error --no-audit --no-fund && touch ready

# Fails where PyPI or npm do not answer and it is not there yet.
e2b-sdks: $(E2B_PY)/ready $(if $(shell command -v npm),$(E2B_JS)/ready)

## e2b           E2B's SDKs, unchanged, against a real thawboxd (needs /dev/kvm and the template); K=expression, M="not slow"
e2b: build e2b-sdks
	$(Q)THAWBOX_BIN=$(abspath $(B)) E2B_JS=$(abspath $(E2B_JS)) $(E2B_PY)/bin/python -m pytest -q -rsx \
		-p no:cacheprovider tests/e2b $(if $(K),-k '$(K)') $(if $(M),-m '$(M)')

# What the Python package is tested with, kept as E2B's SDKs are.
SDK_PY = $(OUT)/sdk/python-$(shell sha256sum tests/sdk/requirements.txt | cut -c1-12)
$(SDK_PY)/ready: tests/sdk/requirements.txt
	$(call say,PIP,$(SDK_PY))
	$(Q)$(PYTHON) -m venv $(SDK_PY) && $(SDK_PY)/bin/python -m pip install -q --disable-pip-version-check -r $< && touch $@

## sdk           the Python package: mypy, ruff, then against a real thawboxd (needs /dev/kvm and the template); K=expression, M="not vm"
sdk: build $(SDK_PY)/ready sdk-lint
	$(Q)THAWBOX_BIN=$(abspath $(B)) $(SDK_PY)/bin/python -m pytest -q -rsx -p no:cacheprovider tests/sdk $(if $(K),-k '$(K)') $(if $(M),-m '$(M)')
sdk-packages: $(SDK_PY)/ready
sdk-lint: $(SDK_PY)/ready
	$(Q)cd sdk/python && for v in 3.10 3.11 3.12 3.13; do \
		$(abspath $(SDK_PY))/bin/python -m mypy --python-version $$v --cache-dir $(abspath $(BUILD))/mypy || exit 1; done
	$(Q)$(SDK_PY)/bin/python -m ruff check --no-cache --config sdk/python/pyproject.toml sdk/python/src tests/sdk bench/sdk.py

## test-bench    tests of the benchmarks' programs: statistics, options, small real runs
test-bench: build
	$(Q)THAWBOX_BIN=$(abspath $(B)) $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/bench $(if $(K),-k '$(K)')

## tsan          the tests of tiny guests through a monitor built with ThreadSanitizer (Criterion does not run under it)
tsan:
	$(Q)$(MAKE) --no-print-directory VARIANT=tsan programs
	$(Q)rm -f $(BUILD)/tsan/race.*
	$(Q)THAWBOX_ISOLATION=none TSAN_OPTIONS=exitcode=66:log_path=$(abspath $(BUILD))/tsan/race THAWBOX_BIN=$(abspath $(BUILD))/tsan \
		$(PYTHON) -m pytest -q -rs -p no:cacheprovider -k 'not both_sides_of_the_hole' \
		tests/e2e/test_machine.py tests/e2e/test_freeze.py tests/e2e/test_interrupts.py
	$(Q)! cat $(BUILD)/tsan/race.* 2>/dev/null

## hostile       a guest kernel of ours that attacks its devices, in a monitor under ASan and UBSan; K=expression
HOSTILE = $(sort $(wildcard tests/hostile/payload/*.c tests/hostile/payload/*.S))
hostile:
	$(Q)$(MAKE) --no-print-directory VARIANT=asan $(BUILD)/asan/thawbox-vmm $(BUILD)/hostile/payload
	$(Q)THAWBOX_BIN=$(abspath $(BUILD))/asan HOSTILE_PAYLOAD=$(abspath $(BUILD))/hostile/payload \
		$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/hostile $(if $(K),-k '$(K)')
# A kernel: no libraries, no registers but the general ones, nothing that software KVM cannot interpret.
$(BUILD)/hostile/payload: $(HOSTILE) $(wildcard tests/hostile/payload/*.h)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)gcc -std=gnu11 -O1 -g -Wall -Wextra -Wshadow -Wmissing-prototypes -Werror -ffreestanding -nostdlib -static \
		-no-pie -fno-pie -mno-red-zone -mgeneral-regs-only -fno-stack-protector -fcf-protection=none \
		-fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
		-Wl,-Ttext-segment=0x200000,--build-id=none,-z,noexecstack,-z,max-page-size=4096 -o $@ $(HOSTILE)

## check-hwkvm   machine, bake, thaw and clones under emulated hardware KVM (QEMU; fetches a Debian kernel once)
check-hwkvm: build kernel rootfs
	$(Q)tests/hwkvm/hwkvm.sh -m 6144 -c 1 -t 3600 . tests/hwkvm/check.sh $(abspath $(B))

## check         all of it; needs /dev/kvm
check: packages
	$(Q)tests/tools/check.sh
## check-fast    what needs no VM: both compilers, unit tests, sanitizers, style
check-fast:
	$(Q)tests/tools/check.sh fast

# ---- installation ---------------------------------------------------------------------------------

DEST = $(DESTDIR)$(PREFIX)
## install       DESTDIR and PREFIX (/usr/local) are honoured; uninstall removes it
install: build
	install -D -m 755 $(B)/thawbox $(DEST)/bin/thawbox
	install -D -m 755 $(B)/thawboxd $(DEST)/bin/thawboxd
	install -D -m 755 $(B)/thawbox-vmm $(DEST)/libexec/thawbox/thawbox-vmm
	for u in thawboxd.service thawboxd.socket thawbox-rotate.service thawbox-rotate.timer; do \
		mkdir -p $(DEST)/lib/systemd/system && \
		sed 's|@PREFIX@|$(PREFIX)|' examples/systemd/$$u >$(DEST)/lib/systemd/system/$$u; done
	for d in guest/init guest/python guest/rootfs guest/templates/code-interpreter; do \
		for f in $$(git ls-files $$d); do \
			install -D -m $$([ -x $$f ] && echo 755 || echo 644) $$f $(DEST)/share/thawbox/$$f; \
		done; done
	for k in kernel rootfs; do [ ! -d $(OUT)/$$k/current/ ] || { \
		mkdir -p $(DEST)/share/thawbox/$$k && \
		cp -rL --sparse=always $(OUT)/$$k/current/. $(DEST)/share/thawbox/$$k/; }; done
	for m in $(wildcard docs/*.1); do install -D -m 644 $$m $(DEST)/share/man/man1/$${m##*/}; done

uninstall:
	rm -f $(DEST)/bin/thawbox $(DEST)/bin/thawboxd $(DEST)/lib/systemd/system/thawboxd.* \
		$(DEST)/lib/systemd/system/thawbox-rotate.* $(DEST)/share/man/man1/thawbox*.1
	rm -rf $(DEST)/libexec/thawbox $(DEST)/share/thawbox

## clean         removes build/ (out/, with kernel and root image, stays: make clean-all)
clean:
	rm -rf $(BUILD) bench/thaw
clean-all: clean
	rm -rf $(OUT)
