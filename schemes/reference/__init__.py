"""The torch halves of the schemes: conversion of stored tensors, and the forward that kernels are measured against."""
