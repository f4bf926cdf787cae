// This plugin has no types, and those of DefinitelyTyped need an older joi.

declare module '@hapi/crumb' {
  import type { Plugin } from '@hapi/hapi';
  export const plugin: Plugin<object>;
}
