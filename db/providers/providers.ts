import { sql } from 'drizzle-orm';
import { type Database, insertAll, run, transaction } from '../client.ts';
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

/**
 * Returns the NPIs for which the registry must be called: no import contains them, and the registry
 * was not called for them within the last 24 hours. We do not call the public registry more often
 * than that. A row from an older response stays in use until a newer response arrives.
 */
export async function listRegistryDue(
  db: Database,
  npis: readonly string[],
): Promise<string[]> {
  const rows = await run<{ npi: string }>(db)`
    select distinct asked.npi from unnest(${sql.param(npis)}::text[]) asked(npi)
     where not exists (
       select from providers p where p.npi = asked.npi
          and (p.origin = 'nppes' or p.imported_at > clock_timestamp() - interval '24 hours'))`;
  return rows.map(({ npi }) => npi);
}

/**
 * Stores the registry's response for an NPI and replaces the previous one. Changes nothing if an
 * import contains the NPI, or if a concurrent call stored a response first.
 * @param provider null if the registry has no active provider with this NPI. Then the NPI is stored
 * as deactivated today, without other data, and is not looked up for a day. After that, the
 * registry is asked again, because the NPI may be new or reactivated.
 */
export async function storeRegistryAnswer(
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
  const details = [
    [providerEndpoints, endpoints],
    [providerOtherNames, otherNames],
    [providerLocations, locations.map(locationRow)],
  ] as const;
  await transaction(db, async (tx) => {
    await tx.delete(providers).where(sql`npi = ${npi} and origin = 'registry'`);
    const written = await tx
      .insert(providers)
      .values({ ...facts, ...practiceColumns, ...marks })
      .onConflictDoNothing()
      .returning({ npi: providers.npi });
    if (written.length === 0) return;
    for (const [table, rows] of details) {
      // Deletes old details, because the new response may not contain them. If the response
      // contains duplicates, the first one is stored.
      await tx.delete(table).where(sql`npi = ${npi}`);
      if (rows.length === 0) continue;
      const insert = insertAll(table, rows, { npi, importNumber: null });
      await tx.execute(sql`${insert} on conflict do nothing`);
    }
  });
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
