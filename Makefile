# make          installs what is missing and builds build/release/moewright
# make demo     the same, and trains the example model
# make test     the same, and runs every test that this machine can run
# make install  the same, and puts moewright into /usr/local/bin, or PREFIX/bin
# make package  a .deb in build/portable, for any x86-64 CPU
# make install-library  installs the library and its headers for find_package(Moewright)
CLANG_FORMAT ?= clang-format-14
BUILD := build/release
SOURCES := find $(wildcard src tests bench examples) -name '*.h' -o -name '*.cpp' -o -name '*.cu'

PREFIX ?= /usr/local

.PHONY: all build test demo install install-library package setup format check check-format check-rooms check-words tidy unit clean help
all: build

build: setup $(BUILD)/build.ninja  ## build/release/moewright
	cmake --build --preset cpu-release --target moewright

test: setup $(BUILD)/build.ninja  ## every test that this machine can run, MPI included
	cmake --build --preset cpu-release
	ctest --preset cpu-release --output-junit tests.xml

demo: build  ## train examples/demo.toml on two ranks
	tools/run_demo.sh

install: build  ## moewright on PATH: into PREFIX/bin, by default /usr/local/bin
	$(call install_component,program)
	@echo "installed $(PREFIX)/bin/moewright"

install-library: build  ## the library for other programs: find_package(Moewright), see examples/embed
	cmake --build --preset cpu-release --target moewright_library
	$(call install_component,library)
	@echo "installed the library; its users set CMAKE_PREFIX_PATH=$(PREFIX)"

package: setup  ## a Debian package for any x86-64 CPU
	cmake --preset cpu-portable
	cmake --build --preset cpu-portable --target moewright
	rm -f build/portable/*.deb
	cd build/portable && cpack

define install_component
@cmake --install $(BUILD) --prefix "$(PREFIX)" --component $(1) >/dev/null || \
  { echo "install: cannot write to $(PREFIX); run it as root, or name another prefix: make $@ PREFIX=$$HOME/.local" >&2; exit 1; }
endef

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: CMakePresets.json | setup
	cmake --preset cpu-release
	@touch $@

format:  ## rewrite the sources in the house style
	$(SOURCES) | xargs -r $(CLANG_FORMAT) -i

check: check-format check-rooms check-words tidy unit  ## all of these: minutes after a build
check-format:
	$(SOURCES) | xargs -r $(CLANG_FORMAT) --dry-run -Werror
check-rooms:
	python3 tools/check_rooms.py --self-test
	python3 tools/check_rooms.py
	python3 tools/draw_rooms.py --check
check-words:
	python3 tools/check_words.py
tidy: setup  ## clang-tidy on the changed files, as tools/tidy.py chooses them
	tools/tidy.py
unit: $(BUILD)/build.ninja  ## the unit tests
	cmake --build --preset cpu-release --target unit_tests
	ctest --preset cpu-release -L '^unit$$' --output-log $(BUILD)/unit.log --quiet || { cat $(BUILD)/unit.log; exit 1; }

clean:  ## remove build/
	rm -rf build

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/'
