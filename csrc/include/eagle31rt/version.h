#pragma once

#define EAGLE31RT_VERSION "0.1.0"
