# SPDX-License-Identifier: MIT
# A thin wrapper over CMake that also fetches what a fresh Debian or Ubuntu lacks.
#     make          the libraries and the program, in build/
#     make check    the tests, too, and runs them
#     make demo     the program alone, and a look at what loci does
#     make pictures the pictures and tables of docs/ that `loci show` makes
# CMAKE_ARGS goes to CMake, for example: make CMAKE_ARGS=-DLOCI_WERROR=ON
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: all check demo pictures configure clean setup
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

configure: setup
	cmake -S . -B $(BUILD) $(CMAKE_ARGS)

setup:
	@bash scripts/need cc:build-essential stdio.h:libc6-dev cmake:cmake jansson.h:libjansson-dev

clean:
	rm -rf $(BUILD)
