// Marks the symbols that libpackhorse exports; all others are hidden.
#pragma once

#define PACKHORSE_API __attribute__((visibility("default")))
