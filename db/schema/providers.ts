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

// Data about providers from NPPES, from other CMS files, and from operators. One table records each
// import of a file.

/**
 * A row per NPI. Unused columns of NPPES (sex, licenses, mailing address) are not stored.
 */
export const providers = pgTable(
  'providers',
  {
    npi: bytewiseText('npi').primaryKey(),
    /**
     * 1 for a person, 2 for an organization. Null for deactivated NPIs, because NPPES publishes no
     * other data about them.
     */
    entityType: smallint('entity_type'),
    lastName: text('last_name'),
    firstName: text('first_name'),
    middleName: text('middle_name'),
    nameSuffix: text('name_suffix'),
    credential: text('credential'),
    /** The code of a person's primary taxonomy, such as `207Q00000X`. */
    taxonomy: text('taxonomy'),
    otherLastName: text('other_last_name'),
    otherFirstName: text('other_first_name'),
    /**
     * Surnames that this NPI had in earlier data, the newest first (`kept_surnames` in
     * db/migrations). A person who marries keeps the old address for years, but NPPES may drop the
     * old surname.
     */
    formerLastNames: text('former_last_names').array().notNull().default(sql`'{}'`),
    organizationName: text('organization_name'),
    /** The legal name of the parent organization. */
    parentName: text('parent_name'),
    practiceLine1: text('practice_line_1'),
    practiceLine2: text('practice_line_2'),
    practiceCity: text('practice_city'),
    practiceState: text('practice_state'),
    practicePostalCode: text('practice_postal_code'),
    practicePhone: text('practice_phone'),
    /**
     * The phone number as ten digits. Providers in the same practice usually have the same phone
     * key or address key.
     */
    phoneKey: text('phone_key'),
    /** The normalized street, number, and suite, followed by the five-digit ZIP code. */
    addressKey: text('address_key'),
    updatedOn: date('updated_on'),
    deactivatedOn: date('deactivated_on'),
    reactivatedOn: date('reactivated_on'),
    /**
     * True if a separate column of the file marks the NPI as deactivated; null otherwise. Version 3
     * of the NPPES file has such a column, and sets it even for NPIs without a deactivation date.
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
     * The date of this row's data: the last day that the NPPES file covers, or the day when we
     * called the NPI registry. Older data does not replace newer data.
     */
    asOf: date('as_of').notNull().default(sql`current_date`),
    /**
     * A hash of the row's data. An import compares it instead of all columns to see whether the row
     * has changed.
     */
    rowHash: count('row_hash').notNull(),
    /**
     * The number of the import that last wrote this row (import_runs.number); null for data of the
     * NPI registry.
     */
    importNumber: integer('import_number'),
    importedAt: time('imported_at').notNull().default(clockTime),
  },
  (table) => [
    check('providers_npi_check', sql`npi ~ '^[0-9]{10}$'`),
    check('providers_entity_type_check', sql`entity_type in (1, 2)`),
    check('providers_deactivated_check', sql`deactivated`),
    check('providers_origin_check', sql`origin in ('nppes', 'registry')`),
    // These two indexes find organizations and colleagues with the same phone number or address.
    index('providers_by_phone').on(table.phoneKey, table.entityType),
    index('providers_by_address').on(table.addressKey, table.entityType),
    // Finds namesakes. Many surnames are written with and without a space, a hyphen, or an apostrophe.
    index('providers_by_name')
      .on(
        sql`lower(translate(last_name, ' ''-', ''))`,
        sql`lower(split_part(first_name, ' ', 1))`,
      )
      .where(sql`entity_type = 1`),
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
    // Used by erasures to find the endpoints with a person's address.
    index('provider_endpoints_by_address')
      .on(sql`endpoint_address(endpoint)`)
      .where(sql`endpoint like '%@%'`),
  ],
);

/** Other names of organizations, such as those under which they do business. */
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

/** The practice locations of persons and organizations, without the primary one. */
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
      columns: [
        table.npi,
        table.line1,
        table.line2,
        table.city,
        table.state,
        table.postalCode,
      ],
    }),
    index('provider_locations_by_phone').on(table.phoneKey),
    index('provider_locations_by_address').on(table.addressKey),
  ],
);

/**
 * The practice locations of clinicians, and the groups through which they bill Medicare. The data
 * is from CMS's "Doctors and Clinicians" file.
 */
export const clinicianPractices = pgTable(
  'clinician_practices',
  {
    npi: bytewiseText('npi').notNull(),
    /**
     * The PAC ID, which is the group's id in Medicare's enrollment system. Empty for clinicians who
     * bill without a group.
     */
    pacId: bytewiseText('pac_id').notNull(),
    /** The phone key and the address key are empty if they are unknown. */
    phoneKey: text('phone_key').notNull(),
    addressKey: text('address_key').notNull(),
    /** The group's legal name. */
    name: text('name'),
    /** The number of clinicians who bill through the group. */
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
 * The email domains of employers, imported by an operator. The key is the NPI of an organization or
 * a person, the PAC ID of a group, or the normalized name of an organization.
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
 * A row is one run of a file's import. After an interruption, the operator imports the whole file
 * again, and that run writes the same rows again.
 */
export const importRuns = pgTable(
  'import_runs',
  {
    id: text('id').primaryKey(),
    /**
     * Identifies the import in the rows that it wrote. The number takes four bytes in each of these
     * rows, and the id would take thirty.
     */
    number: integer('number')
      .notNull()
      .generatedAlwaysAsIdentity()
      .unique('import_runs_number_key'),
    kind: text('kind').$type<words.ImportKind>().notNull(),
    /** The file name without its folder. */
    file: text('file').notNull(),
    /** A value that is equal for files with equal content. */
    fingerprint: text('fingerprint').notNull(),
    state: text('state').$type<'running' | 'done' | 'failed'>().notNull(),
    counts: jsonb('counts')
      .$type<Readonly<Record<string, number>>>()
      .notNull()
      .default({}),
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
