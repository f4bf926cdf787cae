import Joi from 'joi';
import { parsePointer } from '../../activities/http/fields.ts';
import {
  VENDOR_IDS,
  VENDORS,
  type VendorId,
} from '../../activities/vendors/catalogue.ts';
import {
  type HttpJsonSource,
  placeholdersIn,
  type Words,
} from '../../activities/vendors/file.ts';
import { FULLENRICH_POLL_MS } from '../../activities/vendors/fullenrich.ts';
import {
  ROCKETREACH_APIS,
  ROCKETREACH_PLANS,
  type RocketReachApi,
} from '../../activities/vendors/rocketreach.ts';
import type {
  Need,
  SourceFacts,
  VendorFacts,
  Verdict,
} from '../../activities/vendors/vendor.ts';
import {
  VERIFIER_IDS,
  VERIFIERS,
  type VerifierId,
} from '../../activities/verification/verifiers/catalogue.ts';
import type { Rate } from '../../db/lookups/sources.ts';
import { EMAIL_TYPES, type EmailType, PATTERN_SOURCE, SERVICE } from '../../db/words.ts';
import type { Config } from './config.ts';
import {
  check,
  duration,
  members,
  orNull,
  problemsIn,
  rate,
  requireConfidential,
  type Values,
} from './values.ts';

// Checks the sources file, whose path is in SOURCES_FILE. The file contains all settings of sources
// except their keys and URLs. The defaults of the settings are in the catalogues of vendors and
// verifiers. deploy/going-live.md explains each member of the file.

export type LimitSettings = Values<ReturnType<typeof limits>>;
export interface VendorSettings extends Values<ReturnType<typeof pace>> {
  /** True if the vendor's license allows us to store an address after the lookup that found it. */
  readonly may_store: boolean;
}

/** The content of the file after the check, with defaults and secrets filled in. */
export interface SourcesFile {
  /**
   * Ids of the vendors, in the order in which they are called. Null for the default order. With
   * `auto`, each lookup calls all of them by their cost per returned address, cheapest first.
   */
  readonly order: readonly string[] | 'auto' | null;
  /** Whether we write addresses ourselves (the source `pattern`) before we call any vendor. */
  readonly pattern: 'first' | 'off';
  /** The most that one lookup may spend on vendors, in dollars. Null for no limit. */
  readonly max_price_per_lookup: number | null;
  readonly vendors: Readonly<
    Record<VendorId, VendorSettings & { readonly types: readonly EmailType[] }>
  > & {
    readonly rocketreach: { readonly api: RocketReachApi };
    readonly fullenrich: { readonly poll: number };
  };
  readonly verifiers: Readonly<Record<VerifierId, LimitSettings>> & {
    readonly order: readonly VerifierId[] | null;
  };
  /** Additional vendors, which are described in the file and have no code. */
  readonly http: readonly (HttpJsonSource & VendorSettings)[];
  readonly registry: 'off' | 'fallback';
  readonly greylist_wait: number;
  readonly reverify_interval: number;
}

/** The settings that are needed to check the file. */
type Environment = Pick<Config, 'access' | 'secretOf'>;

/**
 * Parses and checks the text of a sources file. If there is no file, pass `{}`.
 * @throws {ConfigError} that lists all problems with their places in the file. It contains no
 * secrets and no values from the file
 */
export function parseSourcesFile(text: string, environment: Environment): SourcesFile {
  return check(sourcesFile(environment), parseJson(text), 'SOURCES_FILE', {
    convert: false,
  });
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    // Keeps only the place from the error message, because the message also quotes the file.
    const [place = ''] = /\(line \d+ column \d+\)/.exec(String(error)) ?? [];
    throw problemsIn('SOURCES_FILE', [`not JSON ${place}`.trim()]);
  }
}

function sourcesFile({ access, secretOf }: Environment) {
  const hasAccess = (id: VendorId | VerifierId) => access[id] !== null;
  return members<SourcesFile>({
    // `http` must be checked before `order`, because `order` may contain the ids of these vendors.
    http: Joi.array()
      .items(httpVendor(secretOf))
      .unique('id', { ignoreUndefined: true })
      .default([]),
    order: order((file) => [...VENDOR_IDS.filter(hasAccess), ...idsIn(file.http)]).allow(
      'auto',
    ),
    pattern: Joi.valid('first', 'off').default('first'),
    max_price_per_lookup: orNull(Joi.number().min(0)),
    vendors: members(
      Object.fromEntries(
        VENDOR_IDS.map((id) => [id, members(vendorMembers(VENDORS[id])).default()]),
      ),
    ).default(),
    verifiers: members({
      order: order(() => VERIFIER_IDS.filter(hasAccess)),
      ...Object.fromEntries(
        VERIFIER_IDS.map((id) => [id, members(limits(VERIFIERS[id])).default()]),
      ),
    }).default(),
    registry: Joi.valid('off', 'fallback').default('off'),
    greylist_wait: duration(1000, 840_000).default(300_000),
    reverify_interval: duration(1000, 86_400_000).default(600_000),
  });
}

/**
 * Returns the rule for a list of source ids. The service calls the sources in the order of the
 * list, and does not call sources that are not in it.
 */
const order = (askable: (siblings: { readonly http?: unknown }) => readonly string[]) =>
  Joi.array()
    .items(
      Joi.string().custom((id: string, helpers) => {
        const ids = askable(helpers.state.ancestors[1]);
        if (ids.includes(id)) return id;
        const known = ids.length === 0 ? 'no source has one' : ids.join(', ');
        throw new Error(`must be a source with a key (Reacher: a URL): ${known}`);
      }),
    )
    .unique()
    .default(null);

/** Returns the ids of the vendors in `http`. Its value may be invalid. */
function idsIn(http: unknown): string[] {
  if (!Array.isArray(http)) return [];
  return http.flatMap((one) => one?.id ?? []);
}

const RATES = Joi.array<readonly Rate[]>().items(rate());

/** Rules for the limits of a source. All workers together stay within these limits. */
const limits = ({ rates }: Pick<SourceFacts, 'rates'>) => ({
  rates: RATES.default(rates),
  /** Null for no limit. */
  daily_credits: orNull(Joi.number().min(0)),
  /** In dollars. Null if unknown; then reports show no dollars for the source. */
  price_per_credit: orNull(Joi.number().min(0).max(100)),
});

/** Rules for the settings that both built-in vendors and vendors in `http` have. */
const pace = (facts: Pick<VendorFacts, 'capMs' | 'callMs' | 'rates'>) => ({
  /** How long a lookup waits for the vendor before it calls the next one. */
  wait: duration(1000, 900_000).default(facts.capMs),
  /** Maximum duration of one call. */
  call: duration(1000, 200_000).default(facts.callMs),
  ...limits(facts),
});

const vendorMembers = (facts: VendorFacts) => ({
  types: types(facts.gives).default(facts.gives),
  ...pace(facts),
  may_store: Joi.boolean().default(true),
  ...OWN[facts.id],
});

const types = (gives: readonly EmailType[]) =>
  Joi.array()
    .items(Joi.valid(...gives))
    .unique()
    .min(1);

/** Rules for settings that only one vendor has, by vendor id. */
const OWN: Readonly<Record<string, Joi.PartialSchemaMap>> = {
  rocketreach: {
    api: Joi.valid(...ROCKETREACH_APIS).default('legacy'),
    plan: Joi.valid(...Object.keys(ROCKETREACH_PLANS)).default('essentials'),
    rates: RATES.when('plan', {
      switch: Object.entries(ROCKETREACH_PLANS).map(([is, rates]) => {
        return { is, then: Joi.any().default(rates) };
      }),
    }),
  },
  fullenrich: { poll: duration(100, 600_000).default(FULLENRICH_POLL_MS) },
};

const VERDICTS: readonly Verdict[] = [
  'valid',
  'catch_all',
  'risky',
  'invalid',
  'unknown',
];
const IDENTITY = ['npi', 'first', 'last', 'full', 'state'];
const NEEDS: readonly Need[] = ['npi', 'name', 'organization', 'address'];
/**
 * Ids that vendors in `http` cannot have: the ids of built-in sources, and names that are stored as
 * the origin of data.
 */
const TAKEN: readonly string[] = [
  ...VENDOR_IDS,
  ...VERIFIER_IDS,
  PATTERN_SOURCE,
  SERVICE,
  'nppes',
  'import',
];

/**
 * The rule for a JSON pointer. It is based on `Joi.any()`, because a string rule would not call
 * `custom` for the empty pointer, which refers to the whole document.
 */
const pointer = Joi.any().custom((value: unknown) => {
  const parts = typeof value === 'string' ? parsePointer(value) : null;
  if (parts === null) {
    throw new Error('must be a JSON pointer such as /results/0/email');
  }
  return parts;
});

const words = <Meaning extends string>(meanings: readonly Meaning[]) =>
  members({
    pointer: pointer.required(),
    values: Joi.object()
      .pattern(Joi.string(), Joi.valid(...meanings))
      .required()
      .custom(withLowercaseKeys<Meaning>),
  }).default(null);

function withLowercaseKeys<Meaning extends string>(values: Words<Meaning>) {
  const entries = Object.entries(values);
  return Object.fromEntries(
    entries.map(([word, meaning]) => [word.toLowerCase(), meaning]),
  );
}

const url = Joi.string()
  .required()
  .custom((text: string) => {
    const one = filledUrl(text, 'a');
    const other = filledUrl(text, 'b');
    requireConfidential(one);
    // A placeholder in the host would let data about a person decide which host gets the vendor's
    // key.
    if (one?.origin !== other?.origin || one?.username || one?.password) {
      throw new Error('may have placeholders only in its path and query');
    }
    return requirePlaceholders(text);
  });

/** Returns the URL with a text in place of each placeholder, or null if it is not a URL. */
function filledUrl(template: string, text: string): URL | null {
  return URL.parse(template.replaceAll(/\{[a-z]+\}/g, text));
}

const body = Joi.object().unknown().required().custom(requirePlaceholders);

function requirePlaceholders<T>(template: T): T {
  const found = [...placeholdersIn(template)];
  const unknown = found.flatMap(([name, need]) => (need === null ? [`{${name}}`] : []));
  if (unknown.length === 0) return template;
  throw new Error(`has no placeholder ${unknown.join(', ')}`);
}

const SECRET = /\$\{([^}]*)\}/g;

const header = (secretOf: Config['secretOf']) =>
  Joi.string().custom((text: string) => {
    const names = [...text.matchAll(SECRET)].map(([, name = '']) => name);
    // Other variables, such as DATABASE_URL, must never be sent to a vendor.
    if (!names.every((name) => /^VENDOR_[A-Z0-9_]+$/.test(name))) {
      throw new Error('may only name variables that begin with VENDOR_');
    }
    const missing = names.filter((name) => !secretOf(name));
    if (missing.length > 0) {
      throw new Error(`needs ${missing.join(', ')}, which is not set`);
    }
    const value = text.replaceAll(SECRET, (_whole, name: string) => secretOf(name) ?? '');
    if (!/^[\t\x20-\x7e\x80-\xff]+$/.test(value)) {
      throw new Error('is not a valid header value');
    }
    return value;
  });

/**
 * Returns the rules for a vendor in `http`. They also parse its JSON pointers and insert its
 * secrets.
 */
function httpVendor(secretOf: Config['secretOf']) {
  return members({
    id: Joi.string()
      .required()
      .invalid(...TAKEN)
      .pattern(/^(?!.*-personal$)[a-z][a-z0-9-]{1,30}$/)
      .messages({
        'any.invalid': '{{#label}} is the name of a built-in source',
        'string.pattern.base':
          '{{#label}} must be 2 to 31 lowercase letters, digits and hyphens, and not end with -personal',
      }),
    method: Joi.valid('GET', 'POST').default('GET'),
    url,
    headers: Joi.object()
      .pattern(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, header(secretOf))
      .default({})
      .messages({ 'object.unknown': "{{#label}} isn't a valid header name" }),
    body: Joi.when('method', {
      is: 'POST',
      then: body,
      otherwise: Joi.forbidden(),
    })
      .default(null)
      .messages({ 'any.unknown': '{{#label}} is allowed with the method POST only' }),
    needs: Joi.array()
      .items(Joi.valid(...NEEDS))
      .unique()
      .required()
      .custom(checkNeeds),
    gives: types(EMAIL_TYPES).required(),
    cost: Joi.number().min(0).max(1000).required(),
    repeat_is_free: Joi.boolean().default(false),
    may_store: Joi.boolean().required(),
    ...pace({ capMs: 60_000, callMs: 30_000, rates: [] }),
    miss: members({
      statuses: Joi.array()
        .items(Joi.number().integer().min(400).max(499))
        .default([404]),
      when: Joi.array()
        .items(
          members({
            pointer: pointer.required(),
            equals: Joi.alternatives(
              Joi.string().allow(''),
              Joi.number(),
              Joi.boolean(),
              Joi.valid(null),
            ).required(),
          }),
        )
        .default([]),
    }).default(),
    candidates: members({
      list: pointer.required(),
      email: pointer.required(),
      type: words(EMAIL_TYPES),
      status: words(VERDICTS),
      validated_at: pointer.default(null),
    }).required(),
    identity: members(
      Object.fromEntries(IDENTITY.map((name) => [name, pointer.default(null)])),
    )
      .required()
      .custom(checkIdentity),
  });
}

/**
 * Checks that `needs` lists all data that the placeholders in the URL and the body use. A vendor is
 * called only for people with the data in `needs`.
 */
function checkNeeds(needs: readonly Need[], helpers: Joi.CustomHelpers) {
  const [source] = helpers.state.ancestors;
  const used = new Set(placeholdersIn([source.url, source.body]).values());
  const missing = [...used].filter((need) => need !== null && !needs.includes(need));
  if (missing.length === 0) return needs;
  throw new Error(
    `must list ${missing.join(', ')}: the URL or the body has placeholders for them`,
  );
}

/**
 * Checks that the vendor's responses contain an NPI or a name. We compare these with the requested
 * person, and reject a response without them.
 */
function checkIdentity(identity: HttpJsonSource['identity']) {
  const { npi, first, last, full } = identity;
  if (npi || full || (first && last)) return identity;
  throw new Error('must point at an NPI, a full name, or a first and a last name');
}
