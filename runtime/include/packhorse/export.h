// Marks what libpackhorse exports; everything else is hidden.
#pragma once

#define PACKHORSE_API __attribute__((visibility("default")))
