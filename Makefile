# SPDX-License-Identifier: MIT
# A thin wrapper over CMake.  Only `make deps`, and what says that it calls it, installs anything.
#     make          the libraries and the program, in build/
#     make demo     `make deps`, then the program alone, and a look at what loci does
#     make check    `make deps`, then everything, and runs the tests
#     make deps     installs a compiler, CMake and jansson where they are missing (Debian, Ubuntu)
#     make pictures the pictures and tables of docs/ that `loci show` makes
#     make dist     the source archive and its bill of materials, in build/dist (docs/quality/supply.md)
#     make explorer a page that shows encodings, in build/explorer/index.html (docs/explorer.md)
#     make npm      the package of npm: the library as WebAssembly, in build/npm (docs/javascript.md)
#     make explorer-deps  installs what these two need: clang for WebAssembly
#     make site     these pages with a search, in build/site; MkDocs comes from PyPI (CONTRIBUTING.md)
# CMAKE_ARGS goes to CMake, for example: make CMAKE_ARGS=-DLOCI_WERROR=ON
# Each step writes its whole output to a log in build/ and prints its progress (scripts/progress).
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

jansson = $(if $(findstring LOCI_IO=OFF,$(CMAKE_ARGS)),,jansson.h:libjansson-dev)
needs = cc:build-essential stdio.h:libc6-dev cmake:cmake $(jansson)
explorer_needs = cmake:cmake make:make clang:clang wasm-ld:lld /usr/lib/wasm32-wasi/libc.a:wasi-libc
wasm_libgcc = $$(clang --target=wasm32-wasi -print-libgcc-file-name)
clang_major = $$(clang -dumpversion | cut -d. -f1)
wasm_runtime = "$(wasm_libgcc):libclang-rt-$(clang_major)-dev-wasm32"
need = bash scripts/need
build = bash scripts/progress $(BUILD)/build.log cmake --build $(BUILD) --parallel $(JOBS)

# Steps run in the order in which they are written; CMake builds in parallel.
.NOTPARALLEL:
.PHONY: all check check-plan clean configure demo demo-plan deps dist explorer explorer-deps npm pictures site wasm
all: configure
	@$(build) --target loci_installed

check: check-plan deps configure
	@$(build)
	@bash scripts/progress $(BUILD)/test.log ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

check-plan:
	@echo "make check builds everything in about 4 minutes on two cores, and tests it in about 10."

demo: demo-plan deps configure
	@$(build) --target loci_cli
	$(BUILD)/loci race

demo-plan:
	@echo "make demo builds the program and compares encodings, in about 2 minutes on two cores."

deps:
	@$(need) $(needs)

pictures: configure
	@$(build) --target loci_cli
	scripts/pictures $(BUILD)/loci docs

# The library as WebAssembly, and the page or the package of it.
wasm = bash scripts/progress $(BUILD)/explorer/build.log cmake --build $(BUILD)/explorer --parallel $(JOBS) --target
explorer npm: wasm
explorer:
	@$(wasm) explorer
	@wc -c $(BUILD)/explorer/index.html
npm:
	@$(wasm) loci_module loci_sums
	@bash javascript/pack $(BUILD)/explorer $(BUILD)/npm
wasm:
	@$(need) --check explorer-deps $(explorer_needs)
	@$(need) --check explorer-deps $(wasm_runtime)
	@bash scripts/progress $(BUILD)/explorer/configure.log cmake -S . -B $(BUILD)/explorer \
	    -DCMAKE_TOOLCHAIN_FILE=cmake/wasm32-wasi.cmake -DCMAKE_BUILD_TYPE=Release \
	    -DBUILD_SHARED_LIBS=OFF -DLOCI_THREADS=OFF -DLOCI_ISAS=simd128 -DLOCI_CLI=OFF -DLOCI_IO=OFF -DLOCI_TESTS=OFF \
	    -DLOCI_EXAMPLES=OFF -DLOCI_EXPLORER=ON $(CMAKE_ARGS)

explorer-deps:
	@$(need) $(explorer_needs)
	@$(need) $(wasm_runtime)

site:
	@bash scripts/site $(BUILD)

dist:
	@bash scripts/dist $(BUILD)/dist

configure:
	@$(need) --check deps $(needs)
	@bash scripts/progress $(BUILD)/configure.log cmake -S . -B $(BUILD) $(CMAKE_ARGS)

clean:
	rm -rf $(BUILD)
