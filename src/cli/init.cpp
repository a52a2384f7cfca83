#include <cstdio>

#include "base/file.h"
#include "cli/commands.h"
#include "spec/run_spec.h"

namespace mw {

Command add_init_command(CLI::App& app) {
  auto* sub = app.add_subcommand("init", "write a commented run file with every key and its default");
  auto path = std::make_shared<std::string>();
  auto force = std::make_shared<bool>(false);
  sub->add_option("FILE", *path, "where to write; printed when left out");
  sub->add_flag("--force", *force, "overwrite an existing file");
  return {sub, [path, force] {
            const std::string text = commented_run_file();
            if (path->empty()) {
              std::fputs(text.c_str(), stdout);
              return Exit::ok;
            }
            if (!*force && path_exists(*path))
              fail(Exit::usage, fmt::format("{} exists", *path), "--force overwrites it");
            write_text_file_atomically(*path, text);
            std::printf("wrote %s\n", path->c_str());
            return Exit::ok;
          }};
}

}  // namespace mw
