// For tests in C++: a main that run.c calls by another name keeps that name.
#pragma once
#ifdef main
extern "C" int main(int, char **);
#endif
