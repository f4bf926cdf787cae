import Joi from 'joi';
import { isConfidential } from '../../activities/http/client.ts';
import type { SecretKey } from '../../db/accounts/secrets.ts';
import { OperatorProblem } from '../../db/connection/errors.ts';
import type { Rate } from '../../db/lookups/sources.ts';

// Rules for the values of environment variables and of the sources file.

/**
 * Thrown if the configuration is invalid. The message names the invalid settings. It does not
 * contain their values, because values may be secret.
 */
export class ConfigError extends OperatorProblem {
  override readonly name = 'ConfigError';
}

/**
 * Returns an error that lists the problems of the environment or the sources file, one per line.
 */
export function problemsIn(what: string, problems: readonly string[]): ConfigError {
  return new ConfigError(`${what} is wrong:\n  ${problems.join('\n  ')}`);
}

/**
 * Checks an object and returns the converted values. If a custom rule throws an error, its message
 * is printed after the name of the setting.
 * @throws {ConfigError} that lists all problems
 */
export function check<T>(
  rules: Joi.ObjectSchema<T>,
  given: unknown,
  what: string,
  options: Joi.ValidationOptions,
): T {
  const { value, error } = rules.validate(given, {
    abortEarly: false,
    errors: { wrap: { label: false } },
    messages: {
      'any.required': '{{#label}} is missing',
      'any.custom': '{{#label}} {{#error.message}}',
    },
    ...options,
  });
  if (!error) return value;
  const messages = error.details.map(({ message }) => message);
  // If a value does not match a pattern, joi quotes the value in its message. We remove it.
  throw problemsIn(
    what,
    messages.map((message) => message.replace(/ with value .*? fails /, ' fails ')),
  );
}

/** The types of the values that pass a table of joi rules. */
export type Values<Rules> = {
  readonly [Name in keyof Rules]: Rules[Name] extends Joi.Schema<infer T> ? T : never;
};

/**
 * Returns the rule for a text that `parse` converts to a value. `parse` returns null if the text is
 * invalid.
 */
const parsed = <T>(parse: (text: string) => T | null, what: string) =>
  Joi.string<T>().custom((text: string) => {
    const value = parse(text);
    if (value === null) throw new Error(`must be ${what}`);
    return value;
  });

/** Returns the rule for a whole number from `min` to `max`. */
export const whole = (min: number, max: number) =>
  Joi.number().integer().min(min).max(max);

export const oneOf = <Word extends string>(...words: readonly Word[]) =>
  Joi.string<Word>().valid(...words);

/** Makes a rule optional. The value is null if it is not set. */
export const orNull = <T>(rule: Joi.AnySchema<T>) =>
  rule.default(null) as Joi.AnySchema<T | null>;

const UNITS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

/** Returns the rule for a duration such as `30s`, which is converted to milliseconds. */
export const duration = (minMs: number, maxMs: number) =>
  Joi.string<number>().custom((text: string) => {
    const ms = parseDuration(text);
    if (ms === null) {
      throw new Error('must be a duration such as 500ms, 30s, 15m, 24h or 30d');
    }
    if (ms < minMs || ms > maxMs) {
      throw new Error(`must be between ${minMs} ms and ${maxMs} ms`);
    }
    return ms;
  });

/** Returns the rule for a rate such as `500/1m`, which means at most 500 calls in any minute. */
export const rate = () =>
  parsed<Rate>((text) => {
    const match = /^([1-9][0-9]{0,5})\/([0-9]+[a-z]+)$/.exec(text);
    if (match === null) return null;
    const [, calls, time = ''] = match;
    const perMs = parseDuration(time);
    if (perMs === null || perMs === 0) return null;
    return { calls: Number(calls), perMs };
  }, 'a rate such as 10/1s or 500/1m');

/** Returns the rule for an object that may have only these members. */
export const members = <T>(keys: Joi.PartialSchemaMap) =>
  Joi.object<T>(keys).messages({
    'object.unknown': `{{#label}} is unknown; known here: ${Object.keys(keys).join(', ')}`,
  });

/**
 * Returns the rule for a list of values separated by commas. The list is empty if it is not set.
 * `item` converts one value, or returns null if that value is invalid.
 */
export const list = <T>(item: (text: string) => T | null, what: string) =>
  parsed<readonly T[]>((text) => {
    const parts = text.split(',').map((part) => part.trim());
    const values = parts.filter((part) => part !== '').map(item);
    if (values.length === 0 || !values.every((value) => value !== null)) {
      return null;
    }
    return values;
  }, `${what}, separated by commas`).default([]);

/**
 * Returns the rule for a list of pairs such as `name=value`, with percent-encoded values as in
 * OpenTelemetry's variables.
 */
export const pairs = () =>
  list((text) => {
    const match = /^([\w.-]+) *= *(.*)$/.exec(text);
    if (match === null) return null;
    const [, name = '', value = ''] = match;
    return [name, decodeURIComponent(value)] as const;
  }, 'pairs such as name=value');

/** Returns the rule for an http or https URL. Slashes at the end are removed. */
export const anyUrl = () =>
  Joi.string()
    .uri({ scheme: ['https', 'http'] })
    .custom((text: string) => text.replace(/\/+$/, ''));

/** Returns the rule for a URL with encrypted traffic: https, or http on this machine. */
export const confidentialUrl = () =>
  anyUrl().custom((text: string) => {
    requireConfidential(URL.parse(text));
    return text;
  });

/** Returns the rule for the URL of a site, such as `https://api.example.com`, without a path. */
export const publicUrl = () =>
  confidentialUrl().custom((text: string) => {
    if (URL.parse(text)?.origin === text.toLowerCase()) return text;
    throw new Error('must be a URL without a path, such as https://api.example.com');
  });

/** Returns the rule for an address of people: an email address, or an https URL of a page. */
export const emailOrUrl = () =>
  parsed((text) => {
    const isEmail =
      Joi.string().email({ tlds: false }).validate(text).error === undefined;
    return isEmail || URL.parse(text)?.protocol === 'https:' ? text : null;
  }, 'an email address, or the https URL of a support page');

/**
 * Checks that traffic to a URL is encrypted or stays on this machine. @throws {Error} if it does
 * not
 */
export function requireConfidential(url: URL | null): void {
  if (url && isConfidential(url)) return;
  throw new Error('must be an https URL; http is for this machine only');
}

/**
 * Parses a duration such as `15m`, and returns milliseconds. Returns null if the text is not a
 * duration.
 */
export function parseDuration(text: string): number | null {
  const match = /^([0-9]{1,9})(ms|s|m|h|d)$/.exec(text);
  if (match === null) return null;
  const [, digits, unit = ''] = match;
  return Number(digits) * (UNITS[unit] ?? Number.NaN);
}

/**
 * Returns true if the text is an existing day as `YYYY-MM-DD`. Date.parse is not enough, because it
 * reads February 31 as a day in March.
 */
export function isDay(date: string): boolean {
  const day = new Date(`${date}T00:00:00Z`);
  return !Number.isNaN(day.getTime()) && day.toISOString().slice(0, 10) === date;
}

const MOMENT =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:[0-9]{2})$/;

/**
 * Parses a time such as `2026-11-20T00:00Z`. It needs `Z` or an offset, because otherwise we would
 * have to guess the time zone. Returns null if the text is not a time.
 */
export function parseMoment(text: string): Date | null {
  if (!MOMENT.test(text) || !isDay(text.slice(0, 10))) return null;
  const time = Date.parse(text);
  return Number.isNaN(time) ? null : new Date(time);
}

/**
 * Parses a key: a version such as `v1`, a colon, and 32 bytes in base64. Returns null if the text
 * is not a key.
 */
export function parseSecretKey(text: string): SecretKey | null {
  const match = /^([a-z0-9]{1,20}):([A-Za-z0-9+/]{43}=)$/.exec(text);
  if (match === null) return null;
  const [, version = '', key = ''] = match;
  return { version, key: Buffer.from(key, 'base64') };
}
