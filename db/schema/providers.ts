import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  date,
  index,
  integer,
  jsonb,
  pgTable,
  primaryKey,
  smallint,
  text,
} from 'drizzle-orm/pg-core';
import type * as words from '../words.ts';
import { bytewiseText, clockTime, count, time } from './columns.ts';

// The parts of NPPES that we use to identify providers, other files about them, and imports.

/**
 * A row per NPI. Unused columns of NPPES (sex, taxonomy, licenses, mailing address) are not stored.
 */
export const providers = pgTable(
  'providers',
  {
    npi: bytewiseText('npi').primaryKey(),
    /**
     * 1 is a person, 2 is an organization. Null for deactivated NPIs, whose rows have no other
     * data.
     */
    entityType: smallint('entity_type'),
    lastName: text('last_name'),
    firstName: text('first_name'),
    middleName: text('middle_name'),
    nameSuffix: text('name_suffix'),
    credential: text('credential'),
    otherLastName: text('other_last_name'),
    otherFirstName: text('other_first_name'),
    organizationName: text('organization_name'),
    /** The legal name of the parent organization. */
    parentName: text('parent_name'),
    practiceLine1: text('practice_line_1'),
    practiceLine2: text('practice_line_2'),
    practiceCity: text('practice_city'),
    practiceState: text('practice_state'),
    practicePostalCode: text('practice_postal_code'),
    practicePhone: text('practice_phone'),
    /** Ten digits. The providers of one practice share the phone key and the address key. */
    phoneKey: text('phone_key'),
    /** The street, number, and suite with the five-digit ZIP, normalized. */
    addressKey: text('address_key'),
    updatedOn: date('updated_on'),
    deactivatedOn: date('deactivated_on'),
    reactivatedOn: date('reactivated_on'),
    /**
     * True if the file says so in a separate column, as V3 does with or without a date; null
     * otherwise.
     */
    deactivated: boolean('deactivated'),
    active: boolean('active')
      .notNull()
      .generatedAlwaysAs(
        sql`deactivated is null
          and (deactivated_on is null or (reactivated_on is not null and reactivated_on >= deactivated_on))`,
      ),
    origin: text('origin').$type<'nppes' | 'registry'>().notNull(),
    /**
     * The day of this state: the last day of the file, or the day of the registry request. Older
     * data does not replace it.
     */
    asOf: date('as_of').notNull().default(sql`current_date`),
    /** Shows whether a row has changed without comparing columns. */
    rowHash: count('row_hash').notNull(),
    /** The import that last wrote this row (import_runs.number); null for data of the registry. */
    importNumber: integer('import_number'),
    importedAt: time('imported_at').notNull().default(clockTime),
  },
  (table) => [
    check('providers_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check('providers_entity_type_check', sql`entity_type in (1, 2)`),
    check('providers_deactivated_check', sql`deactivated`),
    check('providers_origin_check', sql`origin in ('nppes', 'registry')`),
    // Find organizations with the same phone or address as a person.
    index('providers_organizations_by_phone').on(table.phoneKey).where(sql`entity_type = 2`),
    index('providers_organizations_by_address').on(table.addressKey).where(sql`entity_type = 2`),
  ],
);

export const providerEndpoints = pgTable(
  'provider_endpoints',
  {
    npi: bytewiseText('npi').notNull(),
    kind: text('kind').$type<words.EndpointKind>().notNull(),
    endpoint: text('endpoint').notNull(),
    affiliationName: text('affiliation_name'),
    importNumber: integer('import_number'),
  },
  (table) => [
    primaryKey({
      name: 'provider_endpoints_pkey',
      columns: [table.npi, table.kind, table.endpoint],
    }),
    check(
      'provider_endpoints_kind_check',
      sql`kind in ('DIRECT', 'CONNECT', 'SOAP', 'FHIR', 'REST', 'OTHERS')`,
    ),
    // Used by erasures to find the addresses of a person.
    index('provider_endpoints_by_address')
      .on(sql`endpoint_address(endpoint)`)
      .where(sql`endpoint like '%@%'`),
  ],
);

/** The names under which organizations do business. */
export const providerOtherNames = pgTable(
  'provider_other_names',
  {
    npi: bytewiseText('npi').notNull(),
    name: text('name').notNull(),
    typeCode: text('type_code').notNull(),
    importNumber: integer('import_number'),
  },
  (table) => [
    primaryKey({
      name: 'provider_other_names_pkey',
      columns: [table.npi, table.name, table.typeCode],
    }),
  ],
);

/** Practice locations other than the primary one, of persons and organizations. */
export const providerLocations = pgTable(
  'provider_locations',
  {
    npi: bytewiseText('npi').notNull(),
    line1: text('line_1').notNull(),
    line2: text('line_2').notNull(),
    city: text('city').notNull(),
    state: text('state').notNull(),
    postalCode: text('postal_code').notNull(),
    phone: text('phone'),
    phoneKey: text('phone_key'),
    addressKey: text('address_key'),
    importNumber: integer('import_number'),
  },
  (table) => [
    primaryKey({
      name: 'provider_locations_pkey',
      columns: [table.npi, table.line1, table.line2, table.city, table.state, table.postalCode],
    }),
    index('provider_locations_by_phone').on(table.phoneKey),
    index('provider_locations_by_address').on(table.addressKey),
  ],
);

/**
 * Clinicians' practice locations and the groups they bill Medicare for, from CMS's "Doctors and
 * Clinicians".
 */
export const clinicianPractices = pgTable(
  'clinician_practices',
  {
    npi: bytewiseText('npi').notNull(),
    /**
     * The group's id in Medicare's enrollment system; empty for clinicians who bill for
     * themselves.
     */
    pacId: bytewiseText('pac_id').notNull(),
    /** Empty if it is unknown, like the address key. */
    phoneKey: text('phone_key').notNull(),
    addressKey: text('address_key').notNull(),
    /** The group's legal name. */
    name: text('name'),
    /** The number of clinicians who bill for the group. */
    members: integer('members'),
    importNumber: integer('import_number'),
  },
  (table) => [
    primaryKey({
      name: 'clinician_practices_pkey',
      columns: [table.npi, table.pacId, table.phoneKey, table.addressKey],
    }),
    index('clinician_practices_by_group').on(table.pacId).where(sql`pac_id <> ''`),
  ],
);

/**
 * Employer domains from an operator. The key is an organization's or a person's NPI, a group's PAC
 * id, or the normalized name of an organization.
 */
export const employerDomains = pgTable(
  'employer_domains',
  {
    key: bytewiseText('key').primaryKey(),
    domain: text('domain').notNull(),
  },
  () => [check('employer_domains_key_check', sql`key ~ '^(npi|pac_id|name):.'`)],
);

/**
 * Imports. An interrupted import is run again from the beginning. Its rows are the same the second
 * time.
 */
export const importRuns = pgTable(
  'import_runs',
  {
    id: text('id').primaryKey(),
    /** Identifies the import in the rows it wrote, in four bytes instead of the thirty of the id. */
    number: integer('number')
      .notNull()
      .generatedAlwaysAsIdentity()
      .unique('import_runs_number_key'),
    kind: text('kind').$type<words.ImportKind>().notNull(),
    /** The file name without its folder. */
    file: text('file').notNull(),
    /** Identifies files with the same content. */
    fingerprint: text('fingerprint').notNull(),
    state: text('state').$type<'running' | 'done' | 'failed'>().notNull(),
    counts: jsonb('counts').notNull().default({}),
    startedAt: time('started_at').notNull().default(clockTime),
    finishedAt: time('finished_at'),
  },
  () => [
    check(
      'import_runs_kind_check',
      sql`kind in ('nppes', 'clinicians', 'domains', 'emails', 'suppressions')`,
    ),
    check('import_runs_state_check', sql`state in ('running', 'done', 'failed')`),
    check('import_runs_check', sql`(finished_at is null) = (state = 'running')`),
  ],
);
