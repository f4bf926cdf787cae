import { type ApiError, problem } from '../problems.ts';
import { ROUTES } from '../routes.ts';
import { idNameOf } from './validation.ts';

const COMMON =
  'Use /api/v1/email, /api/v1/email/bulk, /api/v1/batches, /api/v1/credits, /api/v1/usage or another path of /docs/reference.';

/** Returns the 404 for a path that is not a route. It names the path that was probably meant. */
export function unknownPath(path: string): ApiError {
  const meant = meantBy(path);
  return problem('not_found', { advice: meant ? `Did you mean ${meant}?` : COMMON });
}

/**
 * Returns the operation that has the same words as a path, in singular or plural, with or without
 * `/api/v1`. Otherwise returns the operation with the same kinds of ids, or null.
 */
function meantBy(path: string): string | null {
  const segments = path.split('/').filter((segment) => segment !== '');
  if (segments.length > 10) return null;
  const words = wordsOf(segments);
  const names = words.filter(isName);
  const routes = ROUTES.map((route) => ({ route, its: wordsOf(route.path.split('/')) }));
  const found =
    routes.find(({ its }) => isEqual(its, words)) ??
    routes.find(({ its }) => names.length > 0 && isEqual(its.filter(isName), names));
  if (!found) return null;
  const { method, path: template } = found.route;
  const filled = template.replaceAll(/\{\w+\}/g, (name) => {
    return segments.find((segment) => nameOf(segment) === name) ?? name;
  });
  return `${method} ${filled}`;
}

/** Returns the words of a path in lowercase without plurals, with the names of ids instead of ids. */
function wordsOf(segments: readonly string[]): string[] {
  return segments
    .map(
      (segment) =>
        nameOf(segment) ?? segment.toLowerCase().replace(/(?:ies|y|(?<=ch)es|s)$/, ''),
    )
    .filter((word) => !/^(?:|api|v[0-9])$/.test(word));
}

/** Returns the placeholder for an id, such as `{batch_id}`, or null for another segment. */
function nameOf(segment: string): string | null {
  const name = idNameOf(segment);
  return name === undefined ? null : `{${name}}`;
}

const isName = (word: string) => word.startsWith('{');

function isEqual(some: readonly string[], others: readonly string[]): boolean {
  return some.join('/') === others.join('/');
}
