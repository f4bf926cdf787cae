CREATE TABLE "api_keys" (
	"id" text PRIMARY KEY NOT NULL,
	"organization_id" text NOT NULL,
	"name" text NOT NULL,
	"role" text NOT NULL,
	"hint" text NOT NULL,
	"hash" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"expires_at" timestamp (3) with time zone,
	"revoked_at" timestamp (3) with time zone,
	"leaked" boolean DEFAULT false NOT NULL,
	"is_test" boolean NOT NULL,
	CONSTRAINT "api_keys_hash_key" UNIQUE("hash"),
	CONSTRAINT "api_keys_name_check" CHECK (length(name) between 1 and 200),
	CONSTRAINT "api_keys_role_check" CHECK (role in ('read', 'member', 'full')),
	CONSTRAINT "api_keys_hash_check" CHECK (octet_length(hash) = 32),
	CONSTRAINT "api_keys_test_is_of_sandbox" CHECK (is_test = is_sandbox(organization_id)),
	CONSTRAINT "api_keys_leaked_is_revoked" CHECK (not leaked or revoked_at is not null)
);

CREATE TABLE "console_sessions" (
	"hash" "bytea" PRIMARY KEY NOT NULL,
	"api_key_id" text NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"used_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "console_sessions_hash_check" CHECK (octet_length(hash) = 32)
);

CREATE TABLE "organizations" (
	"id" text PRIMARY KEY NOT NULL,
	"sandbox_of" text,
	"name" text NOT NULL,
	"requests_per_minute" integer DEFAULT 100 NOT NULL,
	"webhook_secret" text NOT NULL,
	"previous_webhook_secret" text,
	"previous_webhook_secret_expires_at" timestamp (3) with time zone,
	"webhooks_suspended" boolean DEFAULT false NOT NULL,
	"suspended" boolean DEFAULT false NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"closed_at" timestamp (3) with time zone,
	"erased_at" timestamp (3) with time zone,
	CONSTRAINT "organizations_sandbox_of_key" UNIQUE("sandbox_of"),
	CONSTRAINT "organizations_closed_is_suspended" CHECK (closed_at is null or suspended and webhooks_suspended),
	CONSTRAINT "organizations_erased_is_closed" CHECK (erased_at is null or closed_at is not null),
	CONSTRAINT "organizations_name_check" CHECK (length(name) between 1 and 200),
	CONSTRAINT "organizations_requests_per_minute_check" CHECK (requests_per_minute between 1 and 100000),
	CONSTRAINT "organizations_check" CHECK ((previous_webhook_secret is null) = (previous_webhook_secret_expires_at is null)),
	CONSTRAINT "organizations_secrets_encrypted" CHECK (webhook_secret !~ '^whsec_' and coalesce(previous_webhook_secret !~ '^whsec_', true)),
	CONSTRAINT "organizations_sandbox" CHECK (is_sandbox(id) = (sandbox_of is not null) and is_sandbox(sandbox_of) is not true)
);

CREATE TABLE "rate_windows" (
	"api_key_id" text PRIMARY KEY NOT NULL,
	"hits" timestamp with time zone[] DEFAULT '{}' NOT NULL,
	"counts" integer[] DEFAULT '{}' NOT NULL
);

CREATE TABLE "secret_keys" (
	"version" text PRIMARY KEY NOT NULL,
	"check_value" text NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE "credit_balances" (
	"organization_id" text PRIMARY KEY NOT NULL,
	"total" bigint DEFAULT 0 NOT NULL,
	"available" bigint DEFAULT 0 NOT NULL,
	"held" bigint DEFAULT 0 NOT NULL,
	"used" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "credit_balances_total_check" CHECK (total >= 0),
	CONSTRAINT "credit_balances_available" CHECK (available >= 0),
	CONSTRAINT "credit_balances_held_check" CHECK (held >= 0),
	CONSTRAINT "credit_balances_used_check" CHECK (used >= 0),
	CONSTRAINT "credit_balances_conserved" CHECK (total = available + held + used)
);

CREATE TABLE "daily_usage" (
	"organization_id" text NOT NULL,
	"day" date NOT NULL,
	"requested_type" text NOT NULL,
	"found" bigint NOT NULL,
	"replayed" bigint NOT NULL,
	"not_found" bigint NOT NULL,
	"failed" bigint NOT NULL,
	"credits_charged" bigint NOT NULL,
	CONSTRAINT "daily_usage_pkey" PRIMARY KEY("organization_id","day","requested_type")
);

CREATE TABLE "entitlements" (
	"organization_id" text NOT NULL,
	"npi" text collate "C" NOT NULL,
	"email_type" text NOT NULL,
	"request_id" text NOT NULL,
	"charged_at" timestamp (3) with time zone NOT NULL,
	CONSTRAINT "entitlements_pkey" PRIMARY KEY("organization_id","npi","email_type"),
	CONSTRAINT "entitlements_email_type_check" CHECK (email_type in ('professional', 'personal'))
);

CREATE TABLE "ledger_entries" (
	"id" bigint GENERATED ALWAYS AS IDENTITY (sequence name "ledger_entries_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"organization_id" text NOT NULL,
	"request_id" text,
	"kind" text NOT NULL,
	"amount" bigint NOT NULL,
	"reference" text,
	"granted" bigint GENERATED ALWAYS AS (case when kind in ('grant', 'adjustment') then -amount else 0 end) STORED NOT NULL,
	"available" bigint GENERATED ALWAYS AS (case
          when kind in ('grant', 'adjustment', 'release') then amount
          when kind = 'hold' then -amount
          else 0
        end) STORED NOT NULL,
	"held" bigint GENERATED ALWAYS AS (case
          when kind = 'hold' then amount
          when kind in ('charge', 'release') then -amount
          else 0
        end) STORED NOT NULL,
	"used" bigint GENERATED ALWAYS AS (case when kind = 'charge' then amount else 0 end) STORED NOT NULL,
	"side" text GENERATED ALWAYS AS (case
          when kind in ('charge', 'release') then 'settlement'
          when kind = 'hold' then 'hold'
          else 'funding'
        end) STORED NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "ledger_entries_pkey" PRIMARY KEY("organization_id","id"),
	CONSTRAINT "ledger_entries_once" UNIQUE("request_id","side"),
	CONSTRAINT "ledger_entries_kind_check" CHECK (kind in ('grant', 'adjustment', 'hold', 'charge', 'release')),
	CONSTRAINT "ledger_entries_balanced" CHECK (granted + available + held + used = 0),
	CONSTRAINT "ledger_entries_amount" CHECK (amount > 0 or (kind = 'adjustment' and amount <> 0)),
	CONSTRAINT "ledger_entries_request" CHECK ((request_id is not null) = (kind in ('hold', 'charge', 'release'))),
	CONSTRAINT "ledger_entries_reference" CHECK (reference is null or kind = 'grant' and length(reference) between 1 and 200)
);

CREATE TABLE "used_credits" (
	"hour" timestamp (0) with time zone NOT NULL,
	"organization_id" text NOT NULL,
	"used" bigint NOT NULL,
	CONSTRAINT "used_credits_pkey" PRIMARY KEY("hour","organization_id")
);

CREATE TABLE "candidates" (
	"lookup_id" text NOT NULL,
	"email" text NOT NULL,
	"npi" text collate "C" NOT NULL,
	"source" text NOT NULL,
	"claimed_type" text,
	"claimed_verdict" text NOT NULL,
	"claimed_date" timestamp (3) with time zone,
	"is_current" boolean DEFAULT false NOT NULL,
	"confidence" real,
	"repeats_input" boolean NOT NULL,
	"may_store" boolean NOT NULL,
	"named_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"check_after" timestamp (3) with time zone,
	"verdict" text,
	"email_type" text,
	"reason" text,
	"validated_at" timestamp (3) with time zone,
	CONSTRAINT "candidates_pkey" PRIMARY KEY("lookup_id","email"),
	CONSTRAINT "candidates_claimed_verdict_check" CHECK (claimed_verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
	CONSTRAINT "candidates_claimed_type_check" CHECK (claimed_type in ('professional', 'personal')),
	CONSTRAINT "candidates_email_type_check" CHECK (email_type in ('professional', 'personal')),
	CONSTRAINT "candidates_verdict_check" CHECK (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
	CONSTRAINT "candidates_valid_is_complete" CHECK (verdict <> 'valid' or (email_type is not null and validated_at is not null)),
	CONSTRAINT "candidates_wait_or_checked" CHECK (case when verdict is null
            then email_type is null and reason is null and validated_at is null
            else check_after is null end)
);

CREATE TABLE "email_checks" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "email_checks_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"npi" text collate "C" NOT NULL,
	"email" text NOT NULL,
	"lookup_id" text,
	"kind" text NOT NULL,
	"source" text NOT NULL,
	"verdict" text NOT NULL,
	"reason" text,
	"duration_ms" integer,
	"waited_ms" integer,
	"at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "email_checks_kind_check" CHECK (kind in ('named', 'identity', 'local', 'verifier', 'verdict')),
	CONSTRAINT "email_checks_verdict_check" CHECK (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown'))
);

CREATE TABLE "source_health" (
	"source" text PRIMARY KEY NOT NULL,
	"state" text DEFAULT 'closed' NOT NULL,
	"failures" integer DEFAULT 0 NOT NULL,
	"era" integer DEFAULT 0 NOT NULL,
	"opened_at" timestamp (3) with time zone,
	"open_until" timestamp (3) with time zone,
	"paused_at" timestamp (3) with time zone,
	"paused_until" timestamp (3) with time zone,
	"last_error" text,
	CONSTRAINT "source_health_state_check" CHECK (state in ('closed', 'open'))
);

CREATE TABLE "source_prices" (
	"source" text PRIMARY KEY NOT NULL,
	"dollars" double precision NOT NULL,
	CONSTRAINT "source_prices_dollars_check" CHECK (dollars >= 0)
);

CREATE TABLE "source_rates" (
	"source" text NOT NULL,
	"limit_name" text NOT NULL,
	"next_at" timestamp with time zone NOT NULL,
	CONSTRAINT "source_rates_pkey" PRIMARY KEY("source","limit_name")
);

CREATE TABLE "source_slots" (
	"source" text NOT NULL,
	"request_id" text NOT NULL,
	"organization_id" text NOT NULL,
	"round" bigint NOT NULL,
	"n" bigint GENERATED ALWAYS AS IDENTITY (sequence name "source_slots_n_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"asked_at" timestamp (3) with time zone NOT NULL,
	"slot_at" timestamp (3) with time zone NOT NULL,
	"is_reserved" boolean NOT NULL,
	CONSTRAINT "source_slots_pkey" PRIMARY KEY("source","request_id"),
	CONSTRAINT "source_slots_organization_id_check" CHECK (not is_sandbox(organization_id))
);

CREATE TABLE "source_spend" (
	"source" text NOT NULL,
	"day" date NOT NULL,
	"organization_id" text DEFAULT '' NOT NULL,
	"credits" numeric(14, 3) DEFAULT 0 NOT NULL,
	CONSTRAINT "source_spend_pkey" PRIMARY KEY("source","day","organization_id"),
	CONSTRAINT "source_spend_organization_id_check" CHECK (not is_sandbox(organization_id)),
	CONSTRAINT "source_spend_credits_check" CHECK (credits >= 0)
);

CREATE TABLE "stored_emails" (
	"npi" text collate "C" NOT NULL,
	"email" text NOT NULL,
	"email_type" text,
	"verdict" text NOT NULL,
	"reason" text,
	"last_validated_at" timestamp (3) with time zone,
	"source" text NOT NULL,
	"repeats_input" boolean DEFAULT false NOT NULL,
	"professional_sought_at" timestamp (3) with time zone,
	"first_seen_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "stored_emails_pkey" PRIMARY KEY("npi","email"),
	CONSTRAINT "stored_emails_npi_check" CHECK (npi ~ '^[0-9]{10}$'),
	CONSTRAINT "stored_emails_email_type_check" CHECK (email_type in ('professional', 'personal')),
	CONSTRAINT "stored_emails_verdict_check" CHECK (verdict in ('valid', 'catch_all', 'risky', 'invalid', 'unknown')),
	CONSTRAINT "stored_emails_valid_is_complete" CHECK (verdict <> 'valid' or (email_type is not null and last_validated_at is not null))
);

CREATE TABLE "vendor_attempts" (
	"lookup_id" text NOT NULL,
	"vendor" text NOT NULL,
	"n" smallint NOT NULL,
	"request_id" text NOT NULL,
	"state" text NOT NULL,
	"job_ref" text,
	"reason" text,
	"next_poll_at" timestamp (3) with time zone,
	"polled_at" timestamp (3) with time zone,
	"polls" integer DEFAULT 0 NOT NULL,
	"credits" numeric(12, 3) DEFAULT 0 NOT NULL,
	"candidates" smallint DEFAULT 0 NOT NULL,
	"returned" boolean DEFAULT false NOT NULL,
	"waited_ms" integer DEFAULT 0 NOT NULL,
	"started_at" timestamp (3) with time zone NOT NULL,
	"ended_at" timestamp (3) with time zone,
	CONSTRAINT "vendor_attempts_pkey" PRIMARY KEY("lookup_id","vendor","n"),
	CONSTRAINT "vendor_attempts_state_check" CHECK (state in (
        'submitting', 'pending', 'found', 'miss', 'skip', 'blocked', 'retry', 'fatal', 'lost'
      )),
	CONSTRAINT "vendor_attempts_credits_check" CHECK (credits >= 0),
	CONSTRAINT "vendor_attempts_check" CHECK ((ended_at is null) = (state in ('submitting', 'pending'))),
	CONSTRAINT "vendor_attempts_check1" CHECK (state <> 'pending' or job_ref is not null)
);

CREATE TABLE "vendor_profiles" (
	"npi" text collate "C" NOT NULL,
	"vendor" text NOT NULL,
	"given_names" text,
	"surname" text,
	"employer_domain" text,
	"seen_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "vendor_profiles_pkey" PRIMARY KEY("npi","vendor"),
	CONSTRAINT "vendor_profiles_npi_check" CHECK (npi ~ '^[0-9]{10}$'),
	CONSTRAINT "vendor_profiles_content_check" CHECK (num_nonnulls(given_names, surname, employer_domain) > 0)
);

CREATE TABLE "routines" (
	"kind" text PRIMARY KEY NOT NULL,
	"ended_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"findings" integer DEFAULT 0 NOT NULL,
	CONSTRAINT "routines_kind_check" CHECK (kind in ('doctor', 'backup'))
);

CREATE TABLE "sweeps" (
	"one" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"due_at" timestamp (3) with time zone NOT NULL,
	"workflows_due_at" timestamp (3) with time zone DEFAULT '-infinity' NOT NULL,
	"swept_at" timestamp (3) with time zone,
	"namespace" text,
	CONSTRAINT "sweeps_one_check" CHECK (one)
);

CREATE TABLE "workers" (
	"id" text PRIMARY KEY NOT NULL,
	"kind" text DEFAULT 'worker' NOT NULL,
	"namespace" text NOT NULL,
	"task_queue" text NOT NULL,
	"build_id" text,
	"seen_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"stopped_at" timestamp (3) with time zone,
	"errors" integer DEFAULT 0 NOT NULL,
	CONSTRAINT "workers_kind_check" CHECK (kind in ('worker', 'api')),
	CONSTRAINT "workers_check" CHECK ((kind = 'worker') = (build_id is not null))
);

CREATE TABLE "audit_log" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "audit_log_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"actor" text NOT NULL,
	"action" text NOT NULL,
	"organization_id" text,
	"subject" text,
	"reason" text NOT NULL,
	"details" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"db_user" text,
	CONSTRAINT "audit_log_actor_check" CHECK (length(actor) between 1 and 200),
	CONSTRAINT "audit_log_reason_check" CHECK (length(reason) between 1 and 1000)
);

CREATE TABLE "suppression_changes" (
	"one" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"n" bigint NOT NULL,
	CONSTRAINT "suppression_changes_one_check" CHECK (one)
);

CREATE TABLE "suppressions" (
	"kind" text NOT NULL,
	"value" text collate "C" NOT NULL,
	"origin" text NOT NULL,
	"reason" text DEFAULT '' NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "suppressions_pkey" PRIMARY KEY("value","kind"),
	CONSTRAINT "suppressions_kind_check" CHECK (kind in ('npi', 'email', 'domain')),
	CONSTRAINT "suppressions_origin_check" CHECK (origin in ('import', 'vendor', 'erasure', 'operator')),
	CONSTRAINT "suppressions_check" CHECK (case kind
        when 'npi' then value ~ '^[0-9]{10}$'
        when 'email' then value ~ '^[0-9a-f]{64}$'
        else value ~ '^[a-z0-9.-]+$'
      end)
);

CREATE TABLE "clinician_practices" (
	"npi" text collate "C" NOT NULL,
	"pac_id" text collate "C" NOT NULL,
	"phone_key" text NOT NULL,
	"address_key" text NOT NULL,
	"name" text,
	"members" integer,
	"import_number" integer,
	CONSTRAINT "clinician_practices_pkey" PRIMARY KEY("npi","pac_id","phone_key","address_key")
);

CREATE TABLE "employer_domains" (
	"key" text collate "C" PRIMARY KEY NOT NULL,
	"domain" text NOT NULL,
	CONSTRAINT "employer_domains_key_check" CHECK (key ~ '^(npi|pac_id|name):.')
);

CREATE TABLE "import_runs" (
	"id" text PRIMARY KEY NOT NULL,
	"number" integer GENERATED ALWAYS AS IDENTITY (sequence name "import_runs_number_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 2147483647 START WITH 1 CACHE 1),
	"kind" text NOT NULL,
	"file" text NOT NULL,
	"fingerprint" text NOT NULL,
	"state" text NOT NULL,
	"counts" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"started_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"finished_at" timestamp (3) with time zone,
	CONSTRAINT "import_runs_number_key" UNIQUE("number"),
	CONSTRAINT "import_runs_kind_check" CHECK (kind in ('nppes', 'clinicians', 'domains', 'emails', 'suppressions')),
	CONSTRAINT "import_runs_state_check" CHECK (state in ('running', 'done', 'failed')),
	CONSTRAINT "import_runs_check" CHECK ((finished_at is null) = (state = 'running'))
);

CREATE TABLE "provider_endpoints" (
	"npi" text collate "C" NOT NULL,
	"kind" text NOT NULL,
	"endpoint" text NOT NULL,
	"affiliation_name" text,
	"import_number" integer,
	CONSTRAINT "provider_endpoints_pkey" PRIMARY KEY("npi","kind","endpoint"),
	CONSTRAINT "provider_endpoints_kind_check" CHECK (kind in ('DIRECT', 'CONNECT', 'SOAP', 'FHIR', 'REST', 'OTHERS'))
);

CREATE TABLE "provider_locations" (
	"npi" text collate "C" NOT NULL,
	"line_1" text NOT NULL,
	"line_2" text NOT NULL,
	"city" text NOT NULL,
	"state" text NOT NULL,
	"postal_code" text NOT NULL,
	"phone" text,
	"phone_key" text,
	"address_key" text,
	"import_number" integer,
	CONSTRAINT "provider_locations_pkey" PRIMARY KEY("npi","line_1","line_2","city","state","postal_code")
);

CREATE TABLE "provider_other_names" (
	"npi" text collate "C" NOT NULL,
	"name" text NOT NULL,
	"type_code" text NOT NULL,
	"import_number" integer,
	CONSTRAINT "provider_other_names_pkey" PRIMARY KEY("npi","name","type_code")
);

CREATE TABLE "providers" (
	"npi" text collate "C" PRIMARY KEY NOT NULL,
	"entity_type" smallint,
	"last_name" text,
	"first_name" text,
	"middle_name" text,
	"name_suffix" text,
	"credential" text,
	"taxonomy" text,
	"other_last_name" text,
	"other_first_name" text,
	"former_last_names" text[] DEFAULT '{}' NOT NULL,
	"organization_name" text,
	"parent_name" text,
	"practice_line_1" text,
	"practice_line_2" text,
	"practice_city" text,
	"practice_state" text,
	"practice_postal_code" text,
	"practice_phone" text,
	"phone_key" text,
	"address_key" text,
	"updated_on" date,
	"deactivated_on" date,
	"reactivated_on" date,
	"deactivated" boolean,
	"active" boolean GENERATED ALWAYS AS (deactivated is null
          and (deactivated_on is null or (reactivated_on is not null and reactivated_on >= deactivated_on))) STORED NOT NULL,
	"origin" text NOT NULL,
	"as_of" date DEFAULT current_date NOT NULL,
	"row_hash" bigint NOT NULL,
	"import_number" integer,
	"imported_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "providers_npi_check" CHECK (npi ~ '^[0-9]{10}$'),
	CONSTRAINT "providers_entity_type_check" CHECK (entity_type in (1, 2)),
	CONSTRAINT "providers_deactivated_check" CHECK (deactivated),
	CONSTRAINT "providers_origin_check" CHECK (origin in ('nppes', 'registry'))
);

CREATE TABLE "batches" (
	"id" text PRIMARY KEY NOT NULL,
	"organization_id" text NOT NULL,
	"api_key_id" text,
	"submitted_as" text NOT NULL,
	"requested_type" text NOT NULL,
	"total" smallint NOT NULL,
	"completed_count" smallint DEFAULT 0 NOT NULL,
	"status" text GENERATED ALWAYS AS (case when completed_count = total then 'completed' else 'in-progress' end) STORED NOT NULL,
	"webhook_url" text,
	"webhook_mode" text,
	"custom_data" text,
	"created_at" timestamp (3) with time zone NOT NULL,
	"updated_at" timestamp with time zone NOT NULL,
	"deadline_at" timestamp (3) with time zone NOT NULL,
	"admitted_at" timestamp (3) with time zone,
	"started_at" timestamp (3) with time zone,
	"checked_at" timestamp (3) with time zone,
	CONSTRAINT "batches_submitted_as_check" CHECK (submitted_as in ('single', 'bulk')),
	CONSTRAINT "batches_requested_type_check" CHECK (requested_type in ('any', 'professional', 'personal')),
	CONSTRAINT "batches_total_check" CHECK (total between 1 and 60),
	CONSTRAINT "batches_check" CHECK (completed_count between 0 and total),
	CONSTRAINT "batches_webhook_mode_check" CHECK (webhook_mode in ('real-time', 'batch')),
	CONSTRAINT "batches_custom_data_check" CHECK (octet_length(custom_data) <= 16384),
	CONSTRAINT "batches_check1" CHECK (webhook_url is null or webhook_mode is not null),
	CONSTRAINT "batches_check2" CHECK (submitted_as = 'bulk' or total = 1)
);

CREATE TABLE "idempotency_keys" (
	"organization_id" text NOT NULL,
	"method" text NOT NULL,
	"path" text NOT NULL,
	"key" text NOT NULL,
	"fingerprint" "bytea" NOT NULL,
	"response" text,
	"created_at" timestamp (3) with time zone NOT NULL,
	"expires_at" timestamp (3) with time zone NOT NULL,
	CONSTRAINT "idempotency_keys_pkey" PRIMARY KEY("organization_id","method","path","key"),
	CONSTRAINT "idempotency_keys_key_check" CHECK (length(key) between 1 and 255)
);

CREATE TABLE "lookups" (
	"id" text PRIMARY KEY NOT NULL,
	"npi" text collate "C" NOT NULL,
	"requested_type" text NOT NULL,
	"opened_at" timestamp (3) with time zone NOT NULL,
	"closed_at" timestamp (3) with time zone,
	"facts" text,
	"employer" text,
	"turn_of" text,
	"turn_until" timestamp (3) with time zone,
	CONSTRAINT "lookups_npi_check" CHECK (npi ~ '^[0-9]{10}$'),
	CONSTRAINT "lookups_requested_type_check" CHECK (requested_type in ('any', 'professional', 'personal')),
	CONSTRAINT "lookups_employer_check" CHECK (employer in ('domain', 'name', 'unknown')),
	CONSTRAINT "lookups_turn_check" CHECK ((turn_of is null) = (turn_until is null))
);

CREATE TABLE "requests" (
	"id" text PRIMARY KEY NOT NULL,
	"batch_id" text NOT NULL,
	"organization_id" text NOT NULL,
	"position" smallint NOT NULL,
	"npi" text collate "C" NOT NULL,
	"requested_type" text NOT NULL,
	"cost" smallint NOT NULL,
	"status" text NOT NULL,
	"lookup_id" text,
	"replayed" boolean DEFAULT false NOT NULL,
	"credits_used" smallint GENERATED ALWAYS AS (case when status = 'completed' and not replayed then cost else 0 end) STORED NOT NULL,
	"email" text,
	"email_type" text,
	"email_last_validated_at" timestamp (3) with time zone,
	"suppression_change" bigint,
	"reason" text,
	"accepted_at" timestamp (3) with time zone NOT NULL,
	"deadline_at" timestamp (3) with time zone NOT NULL,
	"started_at" timestamp (3) with time zone,
	"settled_at" timestamp (3) with time zone,
	"erased_at" timestamp (3) with time zone,
	"test_outcome" text,
	CONSTRAINT "requests_batch_id_position_key" UNIQUE("batch_id","position"),
	CONSTRAINT "requests_position_check" CHECK (position between 0 and 59),
	CONSTRAINT "requests_npi_check" CHECK (npi ~ '^[0-9]{10}$'),
	CONSTRAINT "requests_requested_type_check" CHECK (requested_type in ('any', 'professional', 'personal')),
	CONSTRAINT "requests_cost_positive" CHECK (cost > 0),
	CONSTRAINT "requests_status_check" CHECK (status in ('accepted', 'in-progress', 'completed', 'not_found', 'failed')),
	CONSTRAINT "requests_email_type_check" CHECK (email_type in ('professional', 'personal')),
	CONSTRAINT "requests_test_outcome_check" CHECK (test_outcome in (
        'professional', 'personal', 'found', 'stored', 'replayed', 'slow', 'greylisted',
        'not_found', 'failed', 'deadline'
      )),
	CONSTRAINT "requests_email_iff_completed" CHECK (num_nonnulls(email, email_type, email_last_validated_at) =
        case when status = 'completed' and erased_at is null then 3 else 0 end),
	CONSTRAINT "requests_settled_iff_final" CHECK ((settled_at is not null) = (status in ('completed', 'not_found', 'failed'))),
	CONSTRAINT "requests_replayed_only_completed" CHECK (not replayed or status = 'completed'),
	CONSTRAINT "requests_erased_only_completed" CHECK (erased_at is null or status = 'completed'),
	CONSTRAINT "requests_requested_type_is_a_filter" CHECK (status <> 'completed' or requested_type = 'any' or email_type = requested_type),
	CONSTRAINT "requests_test_is_of_sandbox" CHECK (is_sandbox(organization_id) = (test_outcome is not null)),
	CONSTRAINT "requests_test_joins_no_lookup" CHECK (num_nonnulls(test_outcome, lookup_id) < 2)
);

CREATE TABLE "upload_parts" (
	"upload_id" text NOT NULL,
	"position" integer NOT NULL,
	"npis" text[] NOT NULL,
	"batch_id" text,
	"is_repeat" boolean DEFAULT false NOT NULL,
	CONSTRAINT "upload_parts_pkey" PRIMARY KEY("upload_id","position"),
	CONSTRAINT "upload_parts_batch_id_key" UNIQUE("batch_id"),
	CONSTRAINT "upload_parts_npis_check" CHECK (cardinality(npis) between 1 and 60)
);

CREATE TABLE "uploads" (
	"id" text PRIMARY KEY NOT NULL,
	"organization_id" text NOT NULL,
	"api_key_id" text NOT NULL,
	"file_name" text NOT NULL,
	"content" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	"expires_at" timestamp (3) with time zone NOT NULL,
	"started_at" timestamp (3) with time zone,
	"npi_column" smallint,
	"requested_type" text,
	"submitted_at" timestamp (3) with time zone,
	"stop_reason" text,
	"checked_at" timestamp (3) with time zone,
	"notify_email" text,
	"notified_at" timestamp (3) with time zone,
	CONSTRAINT "uploads_file_name_check" CHECK (length(file_name) between 1 and 200),
	CONSTRAINT "uploads_content_check" CHECK (octet_length(content) <= 10000000),
	CONSTRAINT "uploads_requested_type_check" CHECK (requested_type in ('any', 'professional', 'personal')),
	CONSTRAINT "uploads_notify_email_check" CHECK (length(notify_email) <= 254
        and notify_email ~ '^[a-zA-Z0-9.!#$%&*+/=?^_{|}~-]+@[a-zA-Z0-9.-]+$'),
	CONSTRAINT "uploads_stop_reason_check" CHECK (stop_reason in ('customer', 'operator', 'credits', 'key')),
	CONSTRAINT "uploads_started" CHECK (num_nonnulls(started_at, npi_column, requested_type, checked_at) in (0, 4)),
	CONSTRAINT "uploads_draft_has_no_end" CHECK (started_at is not null
        or num_nonnulls(submitted_at, stop_reason, notify_email, notified_at) = 0)
);

CREATE TABLE "webhook_attempts" (
	"delivery_id" text NOT NULL,
	"n" integer NOT NULL,
	"started_at" timestamp (3) with time zone NOT NULL,
	"duration_ms" integer NOT NULL,
	"status_code" smallint,
	"reason" text,
	"response_excerpt" "bytea",
	CONSTRAINT "webhook_attempts_pkey" PRIMARY KEY("delivery_id","n"),
	CONSTRAINT "webhook_attempts_response_excerpt_check" CHECK (octet_length(response_excerpt) <= 1024)
);

CREATE TABLE "webhook_blocks" (
	"target" text PRIMARY KEY NOT NULL,
	"reason" text NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "webhook_blocks_target_check" CHECK (target ~ '^[0-9a-z.:_-]+(/[0-9]+)?$')
);

CREATE TABLE "webhook_deliveries" (
	"id" text PRIMARY KEY NOT NULL,
	"batch_id" text NOT NULL,
	"request_id" text,
	"organization_id" text NOT NULL,
	"state" text NOT NULL,
	"attempts" integer DEFAULT 0 NOT NULL,
	"resends" integer DEFAULT 0 NOT NULL,
	"step" smallint DEFAULT 0 NOT NULL,
	"step_at" timestamp (3) with time zone,
	"due_at" timestamp (3) with time zone,
	"leased_until" timestamp (3) with time zone,
	"leased_host" text,
	"checked_at" timestamp (3) with time zone,
	"customer_resends" timestamp (3) with time zone[] DEFAULT '{}' NOT NULL,
	"forgotten" integer DEFAULT 0 NOT NULL,
	"created_at" timestamp (3) with time zone NOT NULL,
	"decided_at" timestamp (3) with time zone,
	CONSTRAINT "webhook_deliveries_batch_id_request_id_key" UNIQUE("batch_id","request_id"),
	CONSTRAINT "webhook_deliveries_state_check" CHECK (state in ('pending', 'delivered', 'failed', 'none')),
	CONSTRAINT "webhook_deliveries_check" CHECK ((decided_at is null) = (state in ('pending', 'none'))),
	CONSTRAINT "webhook_deliveries_waits_only_pending" CHECK (state = 'pending' or num_nonnulls(step_at, due_at) = 0),
	CONSTRAINT "webhook_deliveries_customer_resends" CHECK (cardinality(customer_resends) <= 10),
	CONSTRAINT "webhook_deliveries_forgotten" CHECK (forgotten between 0 and attempts)
);

CREATE TABLE "webhook_hosts" (
	"organization_id" text NOT NULL,
	"host" text NOT NULL,
	"failures" integer NOT NULL,
	"failing_since" timestamp (3) with time zone,
	"last_reason" text,
	"open_until" timestamp (3) with time zone,
	"times_opened" integer DEFAULT 0 NOT NULL,
	"era" integer DEFAULT 0 NOT NULL,
	"turn_at" timestamp (3) with time zone,
	"accepted_at" timestamp (3) with time zone,
	"proven_networks" "cidr"[] DEFAULT '{}' NOT NULL,
	CONSTRAINT "webhook_hosts_pkey" PRIMARY KEY("organization_id","host")
);

CREATE TABLE "webhook_networks" (
	"network" "cidr" NOT NULL,
	"customer_id" text NOT NULL,
	"spent_until" timestamp (3) with time zone NOT NULL,
	CONSTRAINT "webhook_networks_pkey" PRIMARY KEY("network","customer_id")
);

ALTER TABLE "api_keys" ADD CONSTRAINT "api_keys_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "console_sessions" ADD CONSTRAINT "console_sessions_api_key_id_fkey" FOREIGN KEY ("api_key_id") REFERENCES "public"."api_keys"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "organizations" ADD CONSTRAINT "organizations_sandbox_of_fkey" FOREIGN KEY ("sandbox_of") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "rate_windows" ADD CONSTRAINT "rate_windows_api_key_id_fkey" FOREIGN KEY ("api_key_id") REFERENCES "public"."api_keys"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "credit_balances" ADD CONSTRAINT "credit_balances_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "candidates" ADD CONSTRAINT "candidates_lookup_id_fkey" FOREIGN KEY ("lookup_id") REFERENCES "public"."lookups"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "email_checks" ADD CONSTRAINT "email_checks_lookup_id_fkey" FOREIGN KEY ("lookup_id") REFERENCES "public"."lookups"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "vendor_attempts" ADD CONSTRAINT "vendor_attempts_lookup_id_fkey" FOREIGN KEY ("lookup_id") REFERENCES "public"."lookups"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "vendor_attempts" ADD CONSTRAINT "vendor_attempts_request_id_fkey" FOREIGN KEY ("request_id") REFERENCES "public"."requests"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "audit_log" ADD CONSTRAINT "audit_log_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "batches" ADD CONSTRAINT "batches_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "batches" ADD CONSTRAINT "batches_api_key_id_fkey" FOREIGN KEY ("api_key_id") REFERENCES "public"."api_keys"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "idempotency_keys" ADD CONSTRAINT "idempotency_keys_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "requests" ADD CONSTRAINT "requests_lookup_id_fkey" FOREIGN KEY ("lookup_id") REFERENCES "public"."lookups"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "upload_parts" ADD CONSTRAINT "upload_parts_upload_id_fkey" FOREIGN KEY ("upload_id") REFERENCES "public"."uploads"("id") ON DELETE cascade ON UPDATE no action;
ALTER TABLE "upload_parts" ADD CONSTRAINT "upload_parts_batch_id_fkey" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "uploads" ADD CONSTRAINT "uploads_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "uploads" ADD CONSTRAINT "uploads_api_key_id_fkey" FOREIGN KEY ("api_key_id") REFERENCES "public"."api_keys"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "webhook_attempts" ADD CONSTRAINT "webhook_attempts_delivery_id_fkey" FOREIGN KEY ("delivery_id") REFERENCES "public"."webhook_deliveries"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "webhook_deliveries" ADD CONSTRAINT "webhook_deliveries_batch_id_fkey" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "webhook_deliveries" ADD CONSTRAINT "webhook_deliveries_request_id_fkey" FOREIGN KEY ("request_id") REFERENCES "public"."requests"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "webhook_deliveries" ADD CONSTRAINT "webhook_deliveries_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
ALTER TABLE "webhook_hosts" ADD CONSTRAINT "webhook_hosts_organization_id_fkey" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE no action ON UPDATE no action;
CREATE INDEX "api_keys_by_organization" ON "api_keys" USING btree ("organization_id");
CREATE INDEX "console_sessions_by_age" ON "console_sessions" USING btree ("created_at");
CREATE UNIQUE INDEX "ledger_entries_reference_once" ON "ledger_entries" USING btree ("organization_id","reference") WHERE reference is not null;
CREATE INDEX "ledger_entries_by_time" ON "ledger_entries" USING brin ("created_at");
CREATE INDEX "ledger_entries_funding" ON "ledger_entries" USING btree ("organization_id","id") WHERE side = 'funding';
CREATE INDEX "candidates_by_npi" ON "candidates" USING btree ("npi");
CREATE INDEX "candidates_by_email" ON "candidates" USING btree ("email");
CREATE INDEX "candidates_by_age" ON "candidates" USING btree ("named_at");
CREATE INDEX "candidates_ended" ON "candidates" USING btree ("named_at") WHERE verdict is not null or not may_store;
CREATE INDEX "email_checks_by_npi" ON "email_checks" USING btree ("npi","email","id");
CREATE INDEX "email_checks_by_lookup" ON "email_checks" USING btree ("lookup_id") WHERE lookup_id is not null;
CREATE INDEX "email_checks_by_email" ON "email_checks" USING btree ("email");
CREATE INDEX "email_checks_by_verifier" ON "email_checks" USING btree ("at") WHERE kind = 'verifier';
CREATE INDEX "source_slots_by_request" ON "source_slots" USING btree ("request_id");
CREATE INDEX "source_spend_by_age" ON "source_spend" USING btree ("day");
CREATE INDEX "stored_emails_going_stale" ON "stored_emails" USING btree ("last_validated_at") WHERE verdict = 'valid';
CREATE INDEX "stored_emails_by_email" ON "stored_emails" USING btree ("email");
CREATE INDEX "stored_emails_by_domain" ON "stored_emails" USING btree (split_part(email, '@', 2),"last_validated_at" DESC NULLS LAST) WHERE verdict = 'valid';
CREATE INDEX "stored_emails_catch_all" ON "stored_emails" USING btree (split_part(email, '@', 2)) WHERE verdict = 'catch_all';
CREATE UNIQUE INDEX "vendor_attempts_open" ON "vendor_attempts" USING btree ("lookup_id","vendor") WHERE ended_at is null;
CREATE INDEX "vendor_attempts_by_time" ON "vendor_attempts" USING btree ("started_at");
CREATE INDEX "vendor_attempts_by_request" ON "vendor_attempts" USING btree ("request_id");
CREATE INDEX "vendor_profiles_by_age" ON "vendor_profiles" USING btree ("seen_at");
CREATE INDEX "audit_log_privacy_requests" ON "audit_log" USING btree ("id") WHERE action in ('privacy.export', 'privacy.erase', 'org.erase', 'suppressions.add');
CREATE INDEX "clinician_practices_by_group" ON "clinician_practices" USING btree ("pac_id") WHERE pac_id <> '';
CREATE INDEX "provider_endpoints_by_address" ON "provider_endpoints" USING btree (endpoint_address(endpoint)) WHERE endpoint like '%@%';
CREATE INDEX "provider_locations_by_phone" ON "provider_locations" USING btree ("phone_key");
CREATE INDEX "provider_locations_by_address" ON "provider_locations" USING btree ("address_key");
CREATE INDEX "providers_by_phone" ON "providers" USING btree ("phone_key","entity_type");
CREATE INDEX "providers_by_address" ON "providers" USING btree ("address_key","entity_type");
CREATE INDEX "providers_by_name" ON "providers" USING btree (lower(translate(last_name, ' ''-', '')),lower(split_part(first_name, ' ', 1))) WHERE entity_type = 1;
CREATE INDEX "batches_to_admit" ON "batches" USING btree ("organization_id","created_at") WHERE admitted_at is null;
CREATE INDEX "batches_to_start" ON "batches" USING btree (coalesce(admitted_at, deadline_at)) WHERE started_at is null;
CREATE INDEX "batches_in_progress" ON "batches" USING btree ("id") WHERE status = 'in-progress';
CREATE INDEX "batches_by_organization" ON "batches" USING btree ("organization_id","created_at");
CREATE INDEX "batches_custom_data_by_age" ON "batches" USING btree ("created_at") WHERE custom_data is not null;
CREATE INDEX "idempotency_keys_by_expiry" ON "idempotency_keys" USING btree ("expires_at");
CREATE UNIQUE INDEX "lookups_open" ON "lookups" USING btree ("npi","requested_type") WHERE closed_at is null;
CREATE INDEX "lookups_by_npi" ON "lookups" USING btree ("npi","opened_at");
CREATE INDEX "lookups_facts_by_age" ON "lookups" USING btree ("opened_at") WHERE facts is not null;
CREATE INDEX "requests_unplanned" ON "requests" USING btree ("organization_id","accepted_at") WHERE status = 'accepted';
CREATE INDEX "requests_open" ON "requests" USING btree ("deadline_at") WHERE settled_at is null;
CREATE INDEX "requests_by_npi" ON "requests" USING btree ("npi","organization_id");
CREATE INDEX "requests_by_settlement" ON "requests" USING brin ("settled_at");
CREATE INDEX "requests_by_lookup" ON "requests" USING btree ("lookup_id") WHERE lookup_id is not null;
CREATE INDEX "requests_by_email" ON "requests" USING btree ("email") WHERE email is not null;
CREATE INDEX "requests_results_by_age" ON "requests" USING btree ("settled_at") WHERE email is not null;
CREATE INDEX "uploads_by_organization" ON "uploads" USING btree ("organization_id");
CREATE INDEX "uploads_by_expiry" ON "uploads" USING btree ("expires_at");
CREATE INDEX "uploads_to_submit" ON "uploads" USING btree ("checked_at") WHERE started_at is not null and submitted_at is null and stop_reason is null;
CREATE INDEX "webhook_attempts_by_age" ON "webhook_attempts" USING btree ("started_at");
CREATE UNIQUE INDEX "webhook_deliveries_of_batch" ON "webhook_deliveries" USING btree ("batch_id") WHERE request_id is null;
CREATE INDEX "webhook_deliveries_by_organization" ON "webhook_deliveries" USING btree ("organization_id","state","created_at");
CREATE INDEX "webhook_deliveries_by_request" ON "webhook_deliveries" USING btree ("request_id") WHERE request_id is not null;
CREATE INDEX "webhook_deliveries_pending" ON "webhook_deliveries" USING btree ("batch_id") WHERE state = 'pending';
CREATE INDEX "webhook_deliveries_to_look_after" ON "webhook_deliveries" USING btree (greatest(checked_at, due_at, created_at)) WHERE state = 'pending';
CREATE INDEX "webhook_deliveries_failed" ON "webhook_deliveries" USING btree ("decided_at") WHERE state = 'failed';
CREATE INDEX "webhook_deliveries_leased" ON "webhook_deliveries" USING btree ("leased_until") WHERE leased_until is not null;
CREATE INDEX "webhook_hosts_by_age" ON "webhook_hosts" USING btree (greatest(failing_since, open_until, turn_at, accepted_at));
CREATE INDEX "webhook_networks_by_age" ON "webhook_networks" USING btree ("spent_until");