import { eq, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  only,
  query,
  run,
  type Transaction,
} from '../connection/client.ts';
import type { VendorProfile } from '../lookups/candidates.ts';
import { employerDomains, providers } from '../schema.ts';
import type { EndpointKind, NpiRefusal } from '../words.ts';
import { readColleagues } from './colleagues.ts';
import { organizationKey } from './keys.ts';

// Reads the facts about an NPI: the provider's identity, groups that bill for the provider, and
// organizations at the same telephone number or address. These facts come from CMS and from the
// operator. The code here does not decide whether they are right.

export interface EndpointFact {
  readonly kind: EndpointKind;
  /** The text in CMS's file, which may be an email address, a URL, or something else. */
  readonly endpoint: string;
  readonly affiliationName: string | null;
}

/** An active organization (type 2) that shares a telephone number or an address with a provider. */
export interface Neighbor {
  readonly npi: string;
  /** The legal business name. */
  readonly name: string | null;
  /** The legal business name of the parent organization. */
  readonly parentName: string | null;
  /** The organization's "doing business as" names. */
  readonly otherNames: readonly string[];
  readonly endpoints: readonly EndpointFact[];
}

/** A telephone number or an address of a provider, with the organizations there. */
export interface Place {
  /**
   * `phone` and `address` belong to the primary practice location. `elsewhere` means another
   * practice location in NPPES, or a location in Medicare's data.
   */
  readonly at: 'phone' | 'address' | 'elsewhere';
  /** A `phone_key` or an `address_key`. */
  readonly key: string;
  /**
   * Null if more than `MAX_NEIGHBORS` organizations share this number or address. It then says
   * nothing about the employer, because it may belong to an answering service or a hospital's
   * switchboard.
   */
  readonly neighbors: readonly Neighbor[] | null;
}

/** A group through which a provider bills Medicare, from CMS's file "Doctors and Clinicians". */
export interface ClinicianPractice
  extends Readonly<Record<'pacId' | 'phoneKey' | 'addressKey', string>> {
  readonly name: string | null;
  readonly members: number | null;
  /** Endpoints of up to 50 other clinicians who bill through the group. */
  readonly colleagues: readonly EndpointFact[];
}

/**
 * The stored facts about a provider. Texts are as in NPPES, including capitals and stray
 * characters.
 */
export type ProviderFacts = NonNullable<Awaited<ReturnType<typeof readProvider>>>;

/**
 * The maximum number of organizations that are read for one telephone number or address. If there
 * are more, none of them is used.
 */
const MAX_NEIGHBORS = 20;
/**
 * The maximum number of practice locations, except primary ones, that are read for one telephone
 * number or address.
 */
const MAX_LOCATIONS = 200;
const MAX_ENDPOINTS = 50;
/** The maximum number of a group's clinicians that are read to find its domain. */
const MAX_COLLEAGUES = 50;
/** The maximum number of telephone numbers and addresses that are read per provider. */
const MAX_PLACES = 10;

/**
 * Returns the reason why an NPI is not looked up, or null (`refusal_of` in db/migrations). An NPI that
 * is not stored may be looked up.
 */
export async function refusalOf(db: Database, npi: string): Promise<NpiRefusal | null> {
  const rows = await run<{ refusal: NpiRefusal | null }>(db)`
    select refusal_of(${npi}) as refusal`;
  return only(rows).refusal;
}

/**
 * Reads all facts about a provider's identity and workplaces. It needs only a few indexed reads,
 * and each has a limit, because very many providers may share a telephone number, an address, or a
 * group.
 * @returns null if neither NPPES nor the registry has the NPI
 */
export async function readProvider(db: Database, npi: string) {
  return await query(db, async (tx) => {
    const [row] = await tx
      .select({
        provider: providers,
        /** States of the practice locations, except the primary one. */
        otherStates: sql<string[]>`array(
          select distinct l.state
            from provider_locations l
           where l.npi = ${npi}
           order by 1
           limit ${MAX_LOCATIONS})`,
        endpoints: endpointsOf(sql`e.npi = ${npi}`),
        practices: practicesOf(npi),
        /** The facts in vendors' own profiles of the provider. */
        profiles: sql<VendorProfile[]>`(
          select coalesce(
                   jsonb_agg(jsonb_build_object(
                     'givenNames', given_names,
                     'surname', surname,
                     'employerDomain', employer_domain)
                     order by vendor),
                   '[]')
            from vendor_profiles v
           where v.npi = ${npi})`,
        elsewhere: sql<string[]>`array(
          select distinct key
            from (
              select unnest(array[phone_key, address_key]) as key
                from provider_locations where npi = ${npi}
              union all
              select unnest(array[phone_key, address_key])
                from clinician_practices where npi = ${npi}) k
           where key <> ''
           limit ${MAX_PLACES})`,
        knowsDomains: sql<boolean>`exists (select from employer_domains)`,
      })
      .from(providers)
      .where(eq(providers.npi, npi));
    if (!row) return null;
    const { provider, elsewhere, knowsDomains, ...facts } = row;
    const places = await readPlaces(tx, provider, elsewhere);
    const near = [provider.phoneKey, provider.addressKey].filter((key) => key !== null);
    const pacIds = facts.practices.map(({ pacId }) => pacId);
    return {
      ...provider,
      ...facts,
      /** The places of the primary practice location come first. */
      places,
      /** Other clinicians at the primary practice location and in the provider's groups. */
      colleagues: await readColleagues(tx, npi, near, [...new Set(pacIds)]),
      /** The domains that the operator has entered for possible employers. */
      domains: knowsDomains ? await readDomains(tx, npi, facts, places) : [],
    };
  });
}

type Reader = Pick<Transaction, 'execute' | 'select'>;

/** Reads the organizations at each place, ordered by NPI. */
async function readPlaces(
  tx: Reader,
  { phoneKey, addressKey }: typeof providers.$inferSelect,
  elsewhere: readonly string[],
): Promise<Place[]> {
  const places: Omit<Place, 'neighbors'>[] = [];
  if (phoneKey) places.push({ at: 'phone', key: phoneKey });
  if (addressKey) places.push({ at: 'address', key: addressKey });
  for (const key of elsewhere) {
    if (key !== phoneKey && key !== addressKey) {
      places.push({ at: 'elsewhere', key });
    }
  }
  const keys = places.map(({ key }) => key);
  // A telephone key never equals an address key, so one list can hold both. Type 3 of an
  // organization's other names is "Doing Business As". The other types, such as former names, are
  // not read.
  const rows = await run<Neighbor & { readonly key: string }>(tx)`
    select asked.key, p.npi, p.organization_name as name, p.parent_name as "parentName",
           array(
             select n.name from provider_other_names n
              where n.npi = p.npi and n.type_code = '3'
              order by n.name
              limit ${MAX_NEIGHBORS}) as "otherNames",
           ${endpointsOf(sql`e.npi = p.npi`)} as endpoints
      from unnest(${sql.param(keys)}::text[]) asked(key)
     cross join lateral (
       ${organizationsAt('phone_key')} union ${organizationsAt('address_key')}) near
     cross join lateral (
       select npi, organization_name, parent_name from providers where npi = near.npi) p
     order by p.npi`;
  return places.map((place) => {
    const here = rows.filter(({ key }) => key === place.key);
    const neighbors = here.map(({ key: _key, ...neighbor }) => neighbor);
    return { ...place, neighbors: neighbors.length > MAX_NEIGHBORS ? null : neighbors };
  });
}

/**
 * Selects the organizations with the key `asked.key`. Each part selects up to `MAX_NEIGHBORS` + 1
 * rows, so that the caller can see that there are too many.
 */
function organizationsAt(column: 'phone_key' | 'address_key'): SQL {
  return sql`
    (select npi from providers
      where entity_type = 2 and active and ${sql.identifier(column)} = asked.key
      limit ${MAX_NEIGHBORS + 1})
    union
    (select p.npi
       from (
         select l.npi from provider_locations l
          where l.${sql.identifier(column)} = asked.key
          limit ${MAX_LOCATIONS}) l
       join providers p on p.npi = l.npi
      where p.entity_type = 2 and p.active
      limit ${MAX_NEIGHBORS + 1})`;
}

/** Reads the domains that the operator has entered for all possible employers of a provider. */
async function readDomains(
  tx: Reader,
  npi: string,
  facts: {
    readonly endpoints: readonly EndpointFact[];
    readonly practices: readonly ClinicianPractice[];
  },
  places: readonly Place[],
) {
  const keys = [`npi:${npi}`];
  for (const { affiliationName } of facts.endpoints) {
    keys.push(nameKey(affiliationName));
  }
  for (const { pacId, name } of facts.practices)
    keys.push(`pac_id:${pacId}`, nameKey(name));
  for (const { neighbors } of places) {
    for (const neighbor of neighbors ?? []) {
      keys.push(
        `npi:${neighbor.npi}`,
        nameKey(neighbor.name),
        nameKey(neighbor.parentName),
      );
      keys.push(...neighbor.otherNames.map(nameKey));
    }
  }
  return await tx
    .select()
    .from(employerDomains)
    .where(sql`key = any(${sql.param(keys)}::text[])`)
    .orderBy(employerDomains.key);
}

function nameKey(name: string | null): string {
  return `name:${organizationKey(name ?? '')}`;
}

function practicesOf(npi: string) {
  const colleagues = sql`e.npi in (
    select c.npi from clinician_practices c
     where c.pac_id = p.pac_id and c.pac_id <> '' and c.npi <> p.npi
     limit ${MAX_COLLEAGUES})`;
  return sql<ClinicianPractice[]>`(
    select coalesce(
             jsonb_agg(
               jsonb_build_object(
                 'pacId', pac_id, 'name', name, 'members', members,
                 'phoneKey', phone_key, 'addressKey', address_key,
                 'colleagues', ${endpointsOf(colleagues)})
               order by pac_id, phone_key, address_key),
             '[]')
      from (select * from clinician_practices where npi = ${npi} limit ${MAX_PLACES}) p)`;
}

/** Selects the endpoints `e` that satisfy `holds`, as a list of `EndpointFact`. */
function endpointsOf(holds: SQL) {
  return sql<EndpointFact[]>`(
    select coalesce(
             jsonb_agg(jsonb_build_object(
               'kind', kind, 'endpoint', endpoint, 'affiliationName', affiliation_name)),
             '[]')
      from (
        select kind, endpoint, affiliation_name from provider_endpoints e
         where ${holds}
         order by kind, endpoint
         limit ${MAX_ENDPOINTS}) e)`;
}
