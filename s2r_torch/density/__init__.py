"""Densities on a fixed grid: kernels, exact and fast estimates, bandwidths, error bars (paper section 4.1).

kernels     Legendre kernels of order alpha, and others; moments checked (K1)
grid        rectilinear grids, interpolation
windows, cells, direct, moments    how sums over windows are computed: by direct summation, or from cell moments
estimator   D_hat from samples, in one call or as a stream
bandwidth   h, fixed before the samples it is used on are drawn
bands       sup-norm error bars by a multiplier bootstrap
difference  do two samples come from one density, asked of many simulators at once
radius      an explicit, rigorous radius (theory.md 3.4)
"""
