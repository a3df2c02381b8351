# SPDX-License-Identifier: MIT
# A thin wrapper over CMake that also fetches what a fresh Debian or Ubuntu lacks.
#     make          the libraries and the program, in build/
#     make check    the tests, too, and runs them
#     make demo     the program alone, and a look at what loci does
#     make pictures the pictures and tables of docs/ that `loci show` makes
#     make dist     the source archive and its bill of materials, in build/dist (docs/quality/supply.md)
#     make explorer a page that shows encodings, in build/explorer/index.html (docs/explorer.md)
# CMAKE_ARGS goes to CMake, for example: make CMAKE_ARGS=-DLOCI_WERROR=ON
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: all check demo pictures explorer dist configure clean setup
all: configure
	cmake --build $(BUILD) --parallel $(JOBS) --target loci_installed

check: configure
	cmake --build $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

demo: configure
	cmake --build $(BUILD) --parallel $(JOBS) --target loci_cli
	$(BUILD)/loci race

pictures: configure
	cmake --build $(BUILD) --parallel $(JOBS) --target loci_cli
	scripts/pictures $(BUILD)/loci docs

explorer:
	@bash scripts/need cmake:cmake make:make clang:clang wasm-ld:lld /usr/lib/wasm32-wasi/libc.a:wasi-libc
	@bash scripts/need "$$(clang --target=wasm32-wasi -print-libgcc-file-name):libclang-rt-$$(clang -dumpversion | cut -d. -f1)-dev-wasm32"
	cmake -S . -B $(BUILD)/explorer -DCMAKE_TOOLCHAIN_FILE=cmake/wasm32-wasi.cmake -DCMAKE_BUILD_TYPE=Release \
	    -DBUILD_SHARED_LIBS=OFF -DLOCI_THREADS=OFF -DLOCI_ISAS=scalar -DLOCI_CLI=OFF -DLOCI_IO=OFF -DLOCI_TESTS=OFF \
	    -DLOCI_EXAMPLES=OFF -DLOCI_EXPLORER=ON $(CMAKE_ARGS)
	cmake --build $(BUILD)/explorer --parallel $(JOBS) --target explorer
	@wc -c $(BUILD)/explorer/index.html

dist:
	@bash scripts/dist $(BUILD)/dist

configure: setup
	cmake -S . -B $(BUILD) $(CMAKE_ARGS)

setup:
	@bash scripts/need cc:build-essential stdio.h:libc6-dev cmake:cmake jansson.h:libjansson-dev

clean:
	rm -rf $(BUILD)
