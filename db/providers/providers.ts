import { eq, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import {
  providerEndpoints,
  providerLocations,
  providerOtherNames,
  providers,
} from '../schema.ts';
import { providerKeys } from './keys.ts';

// Stores data from the NPI Registry, for NPIs that no NPPES import contains. Imports have priority,
// so the code here never changes an imported row.

type Row = typeof providers.$inferSelect;

/**
 * A provider with an active NPI, as the registry returns it, with the field names of NPPES. Empty
 * fields are null.
 */
export interface RegistryProvider
  extends Readonly<
    Pick<
      Row,
      | 'npi'
      | 'lastName'
      | 'firstName'
      | 'middleName'
      | 'nameSuffix'
      | 'credential'
      | 'otherLastName'
      | 'otherFirstName'
      | 'organizationName'
      | 'parentName'
    >
  > {
  readonly entityType: 1 | 2;
  readonly practice: RegistryLocation | null;
  readonly endpoints: readonly RegistryEndpoint[];
  /** Other names, which only organizations have. */
  readonly otherNames: readonly { readonly name: string; readonly typeCode: string }[];
  readonly locations: readonly RegistryLocation[];
}

/** A practice location. Its postal code has five or nine digits. */
export type RegistryLocation = Readonly<
  Record<'line1' | 'line2' | 'city' | 'state' | 'postalCode' | 'phone', string | null>
>;

export type RegistryEndpoint = Omit<
  typeof providerEndpoints.$inferSelect,
  'npi' | 'importNumber'
>;

/** Returns true if the registry must be asked about an NPI (`is_registry_due` in db/migrations). */
export async function isRegistryDue(db: Database, npi: string): Promise<boolean> {
  const rows = await run<{ isDue: boolean }>(db)`
    select is_registry_due(${npi}) as "isDue"`;
  return only(rows).isDue;
}

/**
 * Stores the registry's response for an NPI and replaces the previous one. Changes nothing if an
 * import contains the NPI, or if a concurrent call stored a response first.
 * @param provider null if the registry has no active provider with this NPI. Then the NPI is stored
 * as deactivated today, without other data, and is not looked up for a day. After that, the
 * registry is asked again, because the NPI may be new or reactivated.
 */
export async function storeRegistryResponse(
  db: Database,
  npi: string,
  provider: RegistryProvider | null,
): Promise<void> {
  const found: Partial<RegistryProvider> = provider ?? {};
  const { practice, endpoints = [], otherNames = [], locations = [], ...facts } = found;
  const practiceColumns = practice ? practiceOf(practice) : {};
  const deactivatedOn = provider ? null : sql`current_date`;
  // An import skips rows with an equal hash. The hash of a registry row never matches, so that an
  // import always replaces the row.
  const marks = { npi, deactivatedOn, origin: 'registry', rowHash: 0 } as const;
  await transaction(db, async (tx) => {
    const [old = null] = await run<{ kept: string[] }>(tx)`
      delete from providers p where npi = ${npi} and origin = 'registry'
      returning kept_surnames(p, ${found.firstName ?? null}, ${found.lastName ?? null}) as kept`;
    const formerLastNames = old === null ? [] : old.kept;
    const written = await tx
      .insert(providers)
      .values({ ...facts, ...practiceColumns, ...marks, formerLastNames })
      .onConflictDoNothing()
      .returning({ npi: providers.npi });
    if (written.length === 0) return;
    // The new response may lack old details, so they are deleted first.
    await replaceEndpoints(tx, npi, endpoints);
    await replaceOtherNames(tx, npi, otherNames);
    await replaceLocations(tx, npi, locations);
  });
}

// The three functions below pass all rows as one JSON array, so that the text does not depend on
// their number and can be prepared. If the response contains duplicates, the first one is stored.

async function replaceEndpoints(
  tx: Transaction,
  npi: string,
  endpoints: RegistryProvider['endpoints'],
): Promise<void> {
  await tx.delete(providerEndpoints).where(eq(providerEndpoints.npi, npi));
  await run(tx)`
    insert into provider_endpoints (npi, kind, endpoint, affiliation_name)
    select ${npi}, kind, endpoint, "affiliationName"
      from json_to_recordset(${JSON.stringify(endpoints)}::json)
             e (kind text, endpoint text, "affiliationName" text)
        on conflict do nothing`;
}

async function replaceOtherNames(
  tx: Transaction,
  npi: string,
  otherNames: RegistryProvider['otherNames'],
): Promise<void> {
  await tx.delete(providerOtherNames).where(eq(providerOtherNames.npi, npi));
  await run(tx)`
    insert into provider_other_names (npi, name, type_code)
    select ${npi}, name, "typeCode"
      from json_to_recordset(${JSON.stringify(otherNames)}::json) o (name text, "typeCode" text)
        on conflict do nothing`;
}

async function replaceLocations(
  tx: Transaction,
  npi: string,
  locations: readonly RegistryLocation[],
): Promise<void> {
  const rows = locations.map(locationRow);
  await tx.delete(providerLocations).where(eq(providerLocations.npi, npi));
  await run(tx)`
    insert into provider_locations
      (npi, line_1, line_2, city, state, postal_code, phone, phone_key, address_key)
    select ${npi}, line1, line2, city, state, "postalCode", phone, "phoneKey", "addressKey"
      from json_to_recordset(${JSON.stringify(rows)}::json)
             l (line1 text, line2 text, city text, state text, "postalCode" text, phone text,
                "phoneKey" text, "addressKey" text)
        on conflict do nothing`;
}

function practiceOf(practice: RegistryLocation) {
  return {
    practiceLine1: practice.line1,
    practiceLine2: practice.line2,
    practiceCity: practice.city,
    practiceState: practice.state,
    practicePostalCode: practice.postalCode,
    practicePhone: practice.phone,
    ...providerKeys(practice),
  };
}

/**
 * The columns of an address are part of the primary key and cannot be null. So a missing part is
 * stored as empty text.
 */
function locationRow(location: RegistryLocation) {
  const part = (name: keyof RegistryLocation) => location[name] ?? '';
  return {
    line1: part('line1'),
    line2: part('line2'),
    city: part('city'),
    state: part('state'),
    postalCode: part('postalCode'),
    phone: location.phone,
    ...providerKeys(location),
  };
}
