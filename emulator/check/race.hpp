#pragma once

#include <memory>

#include "check/check.hpp"

namespace emu::check {

class RaceLaunch;
std::shared_ptr<RaceLaunch> start_race_launch(const LaunchContext& context);
std::unique_ptr<Check> make_race_check(const LaunchContext& context,
                                       std::shared_ptr<RaceLaunch> launch);

}  // namespace emu::check
