"""Dense matrices in double precision: residuals and magnitudes."""
