-- Creates the login users, each with one of the roles from db/migrations/roles.sql. A superuser
-- runs it before each start. If all users exist, it changes only passwords. PGOPTIONS passes a
-- password for each user, as npe.NAME.

do $$
declare
  login text;
  member_of text;
begin
  for login, member_of in values
    ('npe_migrate_1', 'npe_owner'),
    ('npe_api_1', 'npe_api'),
    ('npe_worker_1', 'npe_worker'),
    ('npe_operator_1', 'npe_operator'),
    ('temporal', null)
  loop
    if member_of is not null and not exists (select from pg_roles where rolname = member_of) then
      execute format('create role %I nologin', member_of);
    end if;
    if not exists (select from pg_roles where rolname = login) then
      execute format('create user %I', login);
    end if;
    execute format('alter user %I password %L', login, current_setting('npe.' || login));
    if member_of is not null then
      execute format('grant %I to %I', member_of, login);
    end if;
  end loop;
end $$;

-- Lets workers and operators report long transactions. Only a superuser can grant this, so the
-- migrations can't.
grant pg_read_all_stats to npe_worker, npe_operator;

-- Viewers are people, so their users are created by hand (deploy/operations.md, Database users).
do $$
begin
  if not exists (select from pg_roles where rolname = 'npe_viewer') then
    create role npe_viewer nologin;
  end if;
end $$;
