/** The longest name that people can give to an upload or a pasted list. */
export const MAX_NAME = 200;

/**
 * Returns a name as it is stored and shown: cut, and without invisible characters, such as half of a
 * character that was cut. It is empty if nothing is left.
 */
export function shownName(text: string): string {
  return text.slice(0, MAX_NAME).replace(/\p{C}/gu, '').trim();
}

/** Returns the name in the custom data of a batch, or an empty text if it has none. */
export function nameIn(customData: string | null): string {
  if (customData === null) return '';
  // The API accepts only an object.
  const { name } = JSON.parse(customData) as { readonly name?: unknown };
  if (typeof name !== 'string' || name.length > MAX_NAME) return '';
  return shownName(name);
}
