-- End sessions.
-- KEYS: two for each end.
-- ARGV: prefix of the site's sessions, then three for each end.
-- Reply: {'ok', ended}.
return {'ok', run_ends(check_ends(1, 2, ARGV[1], now()))}
