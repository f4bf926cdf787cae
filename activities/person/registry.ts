import type { SourceLimits } from '../../db/lookups/sources.ts';
import type {
  RegistryEndpoint,
  RegistryLocation,
  RegistryProvider,
} from '../../db/providers/providers.ts';
import { ENDPOINT_KINDS } from '../../db/words.ts';
import { byStatus, inBody, jsonApi, protocol, type Trouble } from '../http/client.ts';
import type { Field } from '../http/fields.ts';

export const REGISTRY_URL = 'https://npiregistry.cms.hhs.gov/api/';
/**
 * The NPI Registry publishes no rate limit, so we set our own: at most five requests in any second.
 * Our requests are evenly spaced, about 200 ms apart.
 */
export const REGISTRY_LIMITS: SourceLimits = {
  rates: [{ calls: 5, perMs: 1000 }],
  dailyCredits: null,
};

/**
 * The result of one request to the registry.
 * - `found`: the NPI is active.
 * - `inactive_or_unknown`: the NPI was deactivated or never assigned. The registry does not show
 *   which.
 * - `retry`, `fatal`: the request failed, for the same reasons as a request to a vendor. It costs
 *   nothing.
 */
export type RegistryStep =
  | { readonly kind: 'found'; readonly provider: RegistryProvider }
  | { readonly kind: 'inactive_or_unknown' }
  | Trouble;

export type Registry = ReturnType<typeof createRegistry>;

/**
 * The timeout of one request. The registry normally responds within a second, so after 10 s it has
 * probably failed.
 */
const TIMEOUT_MS = 10_000;

interface RegistryOptions {
  readonly baseUrl: string;
  readonly timeoutMs?: number;
}

/**
 * Returns a client of the public NPI Registry API, version 2.1 (npiregistry.cms.hhs.gov/api-page).
 * We use it for NPIs that the imported NPPES files do not contain. The caller must respect
 * `REGISTRY_LIMITS` and may request an NPI only once a day. `find` throws only if `signal` is
 * aborted, with the reason of the abort.
 */
export function createRegistry({ baseUrl, timeoutMs = TIMEOUT_MS }: RegistryOptions) {
  const headers = { 'user-agent': 'npi-email-enrichment/1.0' };
  const ask = jsonApi(baseUrl, headers, timeoutMs);

  return {
    /** @param npi 10 digits */
    async find(npi: string, signal: AbortSignal): Promise<RegistryStep> {
      const query = new URLSearchParams({ version: '2.1', number: npi });
      const read = byStatus<RegistryStep>({
        200: inBody((body) => stepOfBody(body, npi)),
        // The registry has no accounts, so these statuses must come from a proxy that blocks our
        // requests.
        401: protocol('status'),
        402: protocol('status'),
        403: protocol('status'),
      });
      return await ask({ path: `/?${query}` }, signal, read);
    },
  };
}

// The following functions read the wire format of the NPI Registry API 2.1. Its numeric fields were
// integers in the past and are strings now, so we accept both. A value of `--` means that the field
// is empty.

/**
 * The number of the error "CMS deactivated NPI …. The provider can no longer use this NPI". The
 * registry returns this error with status 200.
 */
const DEACTIVATED_ERROR = '15';

const ABSENT = { kind: 'inactive_or_unknown' } as const;

/**
 * Longer texts are truncated to this length, because they would not fit in a database index. The
 * fields of the NPPES files are shorter.
 */
const MAX_TEXT = 200;
const MAX_ENDPOINT = 1000;

/**
 * Reads a response of status 200 about one NPI. Fields that we do not use are not validated. Error
 * 15, an empty result, and any status except `A` mean that the NPI is not active.
 * @throws {FieldError} if the response is not as documented
 */
function stepOfBody(body: Field, npi: string): RegistryStep {
  const errors = body.at('Errors').items();
  if (errors.length > 0) {
    // Any other error means that our request is malformed. Then requests for all other NPIs are
    // malformed too, so this counts as a failure of the registry.
    const other = errors.find((error) => textAt(error, 'number') !== DEACTIVATED_ERROR);
    if (other) return other.fail();
    return ABSENT;
  }
  const results = body.at('results').present().items();
  if (results.length === 0) return ABSENT;
  const result =
    results.find((one) => textAt(one, 'number') === npi) ?? body.at('results').fail();
  const status = result.at('basic').object().at('status').requiredText();
  if (status !== 'A') return ABSENT;
  return { kind: 'found', provider: providerOf(result, npi) };
}

function providerOf(result: Field, npi: string): RegistryProvider {
  const basic = result.at('basic');
  const otherNames = result.at('other_names').items();
  // Only the first other name of a person is used, because the NPPES files also have only one.
  const [formerly] = otherNames;
  const addresses = result.at('addresses').items();
  const practice = addresses.find((one) => textAt(one, 'address_purpose') === 'LOCATION');
  return {
    npi,
    entityType: entityTypeOf(result.at('enumeration_type')),
    lastName: textAt(basic, 'last_name'),
    firstName: textAt(basic, 'first_name'),
    middleName: textAt(basic, 'middle_name'),
    nameSuffix: textAt(basic, 'name_suffix'),
    credential: textAt(basic, 'credential'),
    otherLastName: formerly ? textAt(formerly, 'last_name') : null,
    otherFirstName: formerly ? textAt(formerly, 'first_name') : null,
    organizationName: textAt(basic, 'organization_name'),
    parentName: textAt(basic, 'parent_organization_legal_business_name'),
    practice: practice ? locationOf(practice) : null,
    endpoints: result.at('endpoints').items().flatMap(endpointOf),
    otherNames: otherNames.flatMap(otherNameOf),
    locations: result.at('practiceLocations').items().map(locationOf),
  };
}

function entityTypeOf(type: Field): 1 | 2 {
  if (type.value === 'NPI-1') return 1;
  if (type.value === 'NPI-2') return 2;
  return type.fail();
}

function otherNameOf(entry: Field): { name: string; typeCode: string }[] {
  const name = textAt(entry, 'organization_name');
  const typeCode = textAt(entry, 'code');
  if (name === null || typeCode === null) return [];
  return [{ name, typeCode }];
}

function locationOf(entry: Field): RegistryLocation {
  return {
    line1: textAt(entry, 'address_1'),
    line2: textAt(entry, 'address_2'),
    city: textAt(entry, 'city'),
    state: textAt(entry, 'state'),
    postalCode: digitsOf(textAt(entry, 'postal_code')),
    phone: digitsOf(textAt(entry, 'telephone_number')),
  };
}

/**
 * Returns only the digits of a text, as the NPPES files have them. Text with letters, such as a
 * Canadian postal code, is returned unchanged.
 */
function digitsOf(text: string | null): string | null {
  if (text === null || /\p{L}/u.test(text)) return text;
  return text.replace(/[^0-9]/g, '') || null;
}

function endpointOf(entry: Field): RegistryEndpoint[] {
  const endpoint = textAt(entry, 'endpoint', MAX_ENDPOINT);
  if (endpoint === null) return [];
  const type = textAt(entry, 'endpointType');
  const kind = ENDPOINT_KINDS.find((one) => one === type) ?? 'OTHERS';
  return [{ kind, endpoint, affiliationName: textAt(entry, 'affiliationName') }];
}

/**
 * Returns the text of a member that is a string or a number. Returns null if the member is missing,
 * empty, or `--`. Truncates text that is longer than `maxLength`.
 * @throws {FieldError} if the member has another type
 */
function textAt(entry: Field, key: string, maxLength = MAX_TEXT): string | null {
  const member = entry.at(key);
  const text = typeof member.value === 'number' ? String(member.value) : member.text();
  if (text === null) return null;
  // PostgreSQL cannot store the character NUL. Other control characters do not belong in these
  // fields either.
  const plain = text
    .replace(/\p{C}+/gu, ' ')
    .trim()
    .slice(0, maxLength)
    .toWellFormed();
  if (/^-*$/.test(plain)) return null;
  return plain;
}
