-- Makes the database on the first start; run by psql at every start, which also shows that a login works.
SELECT 'CREATE DATABASE turnstile' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'turnstile') \gexec
