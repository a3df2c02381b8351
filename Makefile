# SPDX-License-Identifier: MIT
# A thin wrapper over CMake that also fetches what a fresh Debian or Ubuntu lacks.
#     make          the library and the program, in build/
#     make check    the tests
#     make demo     a look at what loci does
# CMAKE_ARGS goes to CMake, for example: make CMAKE_ARGS=-DLOCI_WERROR=ON
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: all check demo clean setup
all: setup
	cmake -S . -B $(BUILD) $(CMAKE_ARGS)
	cmake --build $(BUILD) --parallel $(JOBS)

check: all
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

demo: all
	$(BUILD)/loci race

setup:
	@bash scripts/need cc:build-essential cmake:cmake jansson.h:libjansson-dev

clean:
	rm -rf $(BUILD)
